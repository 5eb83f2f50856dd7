//! The lab comes up as a node with pods: routed, dual stack, offloads on, real servers with checked
//! content.

use baton_lab::{
    DOWNLOAD_BYTES, HttpClient, Lab, Listen, Namespace, NginxOptions, Options, RedisClient, Reply,
    content, echo_body, run_command,
};

fn lab(pods: usize) -> Lab {
    Lab::new("layout", &Options::with_pods(pods))
        .expect("these tests need root: run `make test` as root")
}

#[test]
fn nginx_and_redis_serve_checked_content_over_ipv4_and_ipv6() {
    let lab = lab(2);
    let client = lab.client().namespace();
    let upload = content(1 << 20, 7);
    for pod in lab.pods() {
        let nginx = pod.nginx(&NginxOptions::default()).unwrap();
        for (name, address) in [("v4", nginx.address()), ("v6", nginx.address_v6())] {
            let mut http = HttpClient::connect(client, address).unwrap();
            let echo = http.request("GET", "/echo/x?y=1", &[("X-Nonce", "abc")], &[]).unwrap();
            assert_eq!(echo.pod(), Some(pod.name()));
            assert_eq!(echo.body, echo_body("/echo/x?y=1", "abc").as_bytes());
            let download = http.get("/files/10m.bin").unwrap();
            assert!(download.body == content(DOWNLOAD_BYTES, 0));
            let put = http.request("PUT", &format!("/upload/{name}"), &[], &upload).unwrap();
            assert_eq!(put.status, 201);
            assert!(nginx.uploaded(name).unwrap() == upload);
        }
        let redis = pod.redis().unwrap();
        let mut redis = RedisClient::connect(client, redis.address()).unwrap();
        assert_eq!(redis.call(&[b"SET", b"a", b"b"]).unwrap(), Reply::Simple("OK".into()));
        assert_eq!(redis.call(&[b"GET", b"a"]).unwrap(), Reply::Bulk(Some(b"b".to_vec())));
    }
}

#[test]
fn haproxy_stands_in_the_dataplanes_place() {
    let lab = lab(2);
    let servers: Vec<_> = lab
        .pods()
        .iter()
        .map(|p| (p.name().to_owned(), p.nginx(&NginxOptions::default()).unwrap()))
        .collect();
    let haproxy = lab
        .haproxy(&[Listen {
            checked: false,
            port: 80,
            servers: servers.iter().map(|(n, s)| (n.clone(), s.address())).collect(),
        }])
        .unwrap();
    let mut pods: Vec<_> = (0..2)
        .map(|_| {
            let mut http =
                HttpClient::connect(lab.client().namespace(), haproxy.address(80)).unwrap();
            let pod = http.get("/").unwrap().pod().unwrap().to_owned();
            (http, pod)
        })
        .collect();
    pods.sort_by(|a, b| a.1.cmp(&b.1));
    let names: Vec<_> = pods.iter().map(|(_, pod)| pod.as_str()).collect();
    assert_eq!(names, ["pod-a", "pod-b"], "leastconn spreads two connections");
}

#[test]
fn the_dataplanes_pod_is_like_the_others_and_legs_have_their_mtu() {
    let lab = Lab::new(
        "layout-mtu",
        &Options {
            pods: 1,
            second_client: true,
            leg_mtu: vec![("pod-a".into(), 1400)],
            dataplane_queues: 2,
            ..Options::default()
        },
    )
    .unwrap();
    assert_eq!(lab.clients().len(), 2);
    let mtu = |namespace: &Namespace, device: &str| {
        let text = namespace.ip(&["-o", "link", "show", device]).unwrap();
        let mut words = text.split(' ').skip_while(|w| *w != "mtu");
        words.nth(1).unwrap().to_owned()
    };
    let router = lab.router().namespace();
    assert_eq!(mtu(lab.pods()[0].namespace(), "eth0"), "1400");
    assert_eq!(mtu(router, "pod-a"), "1400");
    assert_eq!(mtu(lab.dataplane_pod().namespace(), "eth0"), "1500");
    assert_eq!(mtu(router, "client2"), "1500");

    let place = lab.dataplane_pod().namespace();
    let links = place.ip(&["-o", "link"]).unwrap();
    assert_eq!(links.lines().count(), 2, "lo and eth0 only: {links}");
    let features = place.run(|| run_command("ethtool", &["-k", "eth0"])).unwrap().unwrap();
    for feature in
        ["tcp-segmentation-offload: on", "tx-checksumming: on", "generic-segmentation-offload: on"]
    {
        assert!(features.contains(feature), "{feature} missing in {features}");
    }
    let queues = place.run(|| run_command("ethtool", &["-l", "eth0"])).unwrap().unwrap();
    assert_eq!(queues.matches("2\n").count(), 4, "two of two queues each way: {queues}");
}

#[test]
fn a_process_that_ends_early_is_reported_with_its_words() {
    let lab = lab(1);
    let mut process = lab.pods()[0]
        .spawn(&baton_lab::Spec::new("sh", ["-c", "echo what went wrong >&2; exit 3"]))
        .unwrap();
    let error = process.wait_listening("127.0.0.1:9".parse().unwrap()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("what went wrong") && text.contains("exit status: 3"), "{text}");
    let error = lab.pods()[0]
        .spawn(&baton_lab::Spec::new("/nonexistent/server", [""; 0]))
        .and_then(|mut p| p.wait(std::time::Duration::from_secs(5)));
    // In a pod's cgroup the shell starts the program and says so itself.
    assert!(error.is_err() || !error.unwrap().success());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (name, options) in [
        ("", Options::default()),
        ("../x", Options::default()),
        ("many", Options::with_pods(27)),
        ("none", Options::with_pods(0)),
    ] {
        assert!(Lab::new(name, &options).is_err(), "{name}");
    }
}
