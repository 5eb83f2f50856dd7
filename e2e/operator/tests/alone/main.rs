//! What becomes of operators that are killed, ended, cut off and started again. The tests of this
//! program share a server and take turns: each starts operators of its own.

mod certificates;
mod costs;
mod fronts;
mod keys;
mod kills;
mod leaders;
mod owners;
mod script;
mod upgrade;
