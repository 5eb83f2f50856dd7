//! One signal to all tasks that the process ends. Owns no order of things: `run` does.

use tokio::sync::watch;

/// Told by signals, once.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

/// Follows the trigger; as many as needed.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// A trigger and what follows it.
pub fn shutdown() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Tells all.
    pub fn pull(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Ends when the process shall. Also if the trigger is gone: nobody could pull it any more.
    pub async fn wait(&mut self) {
        let _ = self.0.wait_for(|pulled| *pulled).await;
    }
}
