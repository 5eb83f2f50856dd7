//! Where the time of a request goes: a client, a server and a tap that note when what happens.

pub(crate) mod packet_socket;
pub(crate) mod phase_server;
pub(crate) mod phases;
pub(crate) mod tap;
pub(crate) mod timestamps;
