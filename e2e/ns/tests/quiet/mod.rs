//! Where moments decide what an end means: nothing that computes runs beside these, which wait
//! (`NS_THREADS`).

mod closes;
mod shutdown;
