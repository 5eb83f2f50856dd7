//! Starts an API server with its controllers and holds it until Enter, for a look by hand.

use anyhow::Result;
use baton_apiserver::{ApiServer, program};
use std::io;

fn main() -> Result<()> {
    let server = ApiServer::start()?;
    server.start_controllers()?;
    let kubeconfig = server.kubeconfig_file(server.admin_identity())?;
    let kubectl = format!("{} kubectl --kubeconfig {}", program()?.display(), kubeconfig.display());
    println!("ready after {} ms: {kubectl} get namespaces", server.started_in().as_millis());
    println!("Enter ends it.");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}
