//! Counters, as plain numbers since the port was opened.

/// What a port did and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames given to the callback.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames put into a TX ring or given to the kernel.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that [`crate::Tx::frame`] could not give, because all buffers were in use.
    pub tx_dropped_no_frame: u64,
    /// Frames dropped because the TX ring or the kernel's queue stayed full.
    pub tx_ring_full: u64,
    /// Frames dropped because their length was below an Ethernet header or beyond the buffer: a bug
    /// of the caller.
    pub tx_invalid: u64,
    /// Frames larger than a buffer, dropped.
    pub rx_oversize: u64,
    /// Packet mode: segments cut out of frames that hold several.
    pub rx_segmented: u64,
    /// Packet mode: frames that hold several segments but could not be cut (malformed, or a wrong
    /// checksum), dropped.
    pub rx_unsegmentable: u64,
    /// Times that a fill ring was found dry with no free buffer at hand.
    pub fill_ring_empty: u64,
    /// `sendto` or `sendmmsg` calls.
    pub wakeups: u64,
    /// `ppoll` calls.
    pub waits: u64,
    /// Waits that looked at the rings before they slept, if they did.
    pub spins: u64,
    /// The kernel's counters of the sockets.
    pub kernel: KernelStats,
    /// The steering program's counters.
    pub steering: SteeringStats,
    /// The way through the host's own stack.
    pub host: HostStats,
}

/// Packets that came and went through the host's own stack; zeros if that is not asked for. They
/// are in no other counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Frames given to the callback, each segment of a large one.
    pub rx_frames: u64,
    /// Segments cut out of packets that hold several.
    pub rx_segmented: u64,
    /// Packets that hold several segments but could not be cut, dropped.
    pub rx_unsegmentable: u64,
    /// Lost because the raw sockets' buffers were full.
    pub rx_lost: u64,
    /// Packets given to the kernel.
    pub tx_frames: u64,
    /// Packets that it refused: a rule of its packet filter, no route, larger than the route's MTU.
    pub tx_refused: u64,
}

/// `XDP_STATISTICS`, summed over queues; in packet mode `rx_ring_full` is the socket's drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStats {
    /// Dropped for other reasons, larger than a buffer among them.
    pub rx_dropped: u64,
    /// Bad addresses in a fill ring: a bug here.
    pub rx_invalid_descs: u64,
    /// Bad descriptors in a TX ring: a bug here.
    pub tx_invalid_descs: u64,
    /// Dropped because an RX ring was full: the process is too slow or the ring too small.
    pub rx_ring_full: u64,
    /// Dropped because a fill ring was empty.
    pub rx_fill_ring_empty: u64,
    /// Looks at an empty TX ring; harmless.
    pub tx_ring_empty: u64,
}

/// The steering program's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringStats {
    /// Ours: redirected into a socket, or in packet mode hidden from the kernel.
    pub taken: u64,
    /// Not ours: left to the kernel.
    pub passed: u64,
    /// Fragments for our addresses, left to the kernel.
    pub fragments: u64,
    /// Ours but larger than a buffer: dropped.
    pub oversize: u64,
    /// Ours but no socket on that queue: left to the kernel.
    pub no_socket: u64,
}
