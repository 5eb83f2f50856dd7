//! Through which proxy the API server is asked, as kubectl chooses it.
//!
//! Owns that no user and no password of a proxy's or server's URL is shown. kube compares
//! `$NO_PROXY` with the proxy's own address, so the choice is made here.

use crate::failure::Failure;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;
use std::net::IpAddr;

/// Where a proxy may be named.
const PLACES: &str = "`proxy-url` of the kubeconfig's cluster, or $HTTPS_PROXY";

/// `proxy-url` of the cluster that this context, or the current one, is of.
pub fn of_cluster(file: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(file.current_context.as_deref())?;
    let mut contexts = file.contexts.iter();
    let context = contexts.find(|one| one.name == context)?.context.as_ref()?;
    let mut clusters = file.clusters.iter();
    let cluster = clusters.find(|one| one.name == context.cluster)?;
    let url = cluster.cluster.as_ref()?.proxy_url.clone();
    url.filter(|url| !url.is_empty())
}

/// The proxy's URL: the cluster's own, or that of the environment if that does not except the
/// server.
pub fn chosen(
    of_cluster: Option<String>,
    server: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    if of_cluster.is_some() {
        return of_cluster;
    }
    let set = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(&env);
        values.find(|value| !value.is_empty())
    };
    let url = set(["HTTPS_PROXY", "https_proxy"])?;
    let except = set(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    // Whatever the proxy is: only the exceptions are asked for.
    let matcher = Matcher::builder().https("proxy").no(except).build();
    let is_led = matcher.intercept(&server.parse().ok()?).is_some();
    (is_led && !is_loopback(server)).then_some(url)
}

fn is_loopback(server: &str) -> bool {
    let host = place(server).split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    let host = host.unwrap_or_default();
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A proxy's URL with the scheme that kube knows it by.
///
/// # Errors
/// It has none that is known.
pub fn with_scheme(url: &str) -> Result<String, Failure> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    match scheme {
        "http" | "https" => Ok(format!("{scheme}://{rest}")),
        // Names are the proxy's to look up with both.
        "socks5" | "socks5h" => Ok(format!("socks5://{rest}")),
        _ => Err(Failure::Config(format!(
            "the proxy {} has the scheme `{scheme}`: expected http, https or socks5 in {PLACES}",
            shown(url)
        ))),
    }
}

/// The URL cannot be used.
pub fn unusable(url: &str) -> Failure {
    Failure::Config(format!(
        "the proxy {} is no URL: expected one as http://HOST:PORT in {PLACES}",
        shown(url)
    ))
}

/// A URL without user and password.
pub fn shown(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://{}", place(url)),
        None => place(url).to_owned(),
    }
}

/// What is behind the scheme, and behind the user.
fn place(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit_once('@').map_or(rest, |(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_own_proxy_is_before_the_environments_and_that_has_exceptions() {
        let chosen = |own: Option<&str>, server: &str, no_proxy: &'static str| {
            let env = |name: &str| match name {
                "https_proxy" => Some("http://proxy.corp:3128".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            };
            chosen(own.map(str::to_owned), server, env)
        };
        let (server, env) = ("https://api.corp:6443", Some("http://proxy.corp:3128".into()));
        assert_eq!(chosen(None, server, ""), env);
        assert_eq!(chosen(None, server, "proxy.corp"), env, "it is the proxy's name");
        for except in ["api.corp", ".corp", "*", "x, corp"] {
            assert_eq!(chosen(None, server, except), None, "{except}");
            let own = chosen(Some("socks5://own:1080"), server, except);
            assert_eq!(own.as_deref(), Some("socks5://own:1080"), "as kubectl has it");
        }
        assert_eq!(chosen(None, "https://10.1.2.3:6443", "10.0.0.0/8"), None);
        for near in [
            "http://api.corp:6443",
            "https://127.0.0.1:6443",
            "https://[::1]:6443/x",
            "https://localhost",
        ] {
            assert_eq!(chosen(None, near, ""), None, "{near}");
        }
    }

    #[test]
    fn nobody_sees_a_password() {
        assert_eq!(shown("http://u:p@proxy:3128"), "http://proxy:3128");
        assert_eq!(shown("u:p@proxy:3128"), "proxy:3128");
        assert_eq!(shown("https://api:6443/x"), "https://api:6443/x");
        for bad in ["ftp://u:secret@proxy", "u:secret@proxy"] {
            let failure = with_scheme(bad).err().unwrap_or_else(|| unusable(bad));
            assert!(!failure.to_string().contains("secret"), "{failure}");
        }
        assert_eq!(with_scheme("proxy:3128"), Ok("http://proxy:3128".into()));
        assert_eq!(with_scheme("socks5h://p"), Ok("socks5://p".into()));
    }
}
