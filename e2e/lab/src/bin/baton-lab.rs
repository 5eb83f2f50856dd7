//! Brings up a lab with nginx and redis in every pod and holds it until Ctrl-C or the end of its
//! input, to look around in by hand. Whoever starts it with a pipe takes it along when it dies.

use anyhow::Result;
use baton_lab::{Lab, NginxOptions, Options};

fn main() -> Result<()> {
    let lab = Lab::new("hold", &Options::default())?;
    let mut servers = Vec::new();
    for pod in lab.pods() {
        servers.push((pod.nginx(&NginxOptions::default())?, pod.redis()?));
        println!("{} {} {}", pod.name(), pod.ipv4(), pod.ipv6());
    }
    println!("enter with: ip netns exec {} bash", lab.client().namespace().name());
    println!("ready {}", lab.id());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    drop(servers);
    lab.remove()
}
