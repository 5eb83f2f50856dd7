//! The guards. One program, which is linked once.
#![allow(missing_docs)]

mod http;
mod http_oracle;
mod memcached;
mod recorded;
mod resp;
mod resp_oracle;
mod segmentation;
mod support;
mod to_come;
