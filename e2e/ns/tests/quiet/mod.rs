//! Where moments decide what an end means: nothing that computes runs beside these, which wait
//! (`--test-threads=4 quiet::`).

mod closes;
mod shutdown;
