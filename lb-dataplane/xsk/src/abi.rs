//! The kernel's packet-I/O interface: the structures and numbers that [`crate::socket`] and
//! [`crate::packet`] exchange with it. Owns no resource and calls nothing.
//!
//! What libc has is taken from there, so that there is one definition of each; the rest mirrors the
//! header that each item names. Headers are those of Linux 6.12 unless said otherwise.

/// One frame on an RX or TX ring.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if_xdp.h#L156> (`struct
/// xdp_desc`)
pub(crate) use libc::xdp_desc as Descriptor;

/// Where in the mapping of a ring its parts are.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if_xdp.h#L63> (`struct
/// xdp_mmap_offsets`)
pub(crate) use libc::{xdp_mmap_offsets as MmapOffsets, xdp_ring_offset as RingOffset};

/// What `XDP_UMEM_REG` takes.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if_xdp.h#L79> (`struct
/// xdp_umem_reg`)
pub(crate) use libc::xdp_umem_reg as UmemRegistration;

/// What `XDP_STATISTICS` gives.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if_xdp.h#L95> (`struct
/// xdp_statistics`)
pub(crate) use libc::xdp_statistics as XdpStatistics;

/// Bytes that the kernel keeps free in front of a received frame in its buffer.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/bpf.h#L6433>
/// (`XDP_PACKET_HEADROOM`)
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;

/// Frames that one `sendto` sends at most in copy mode; Linux 6.18, not in libc yet.
/// <https://elixir.bootlin.com/linux/v6.18/source/include/uapi/linux/if_xdp.h>
/// (`XDP_MAX_TX_SKB_BUDGET`)
pub(crate) const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Smallest buffer that a UMEM may have.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/net/xdp_sock_drv.h#L15>
/// (`XDP_UMEM_MIN_CHUNK_SIZE`)
pub(crate) const UMEM_CHUNK_BYTES_MIN: u32 = 2048;

/// Attach with the driver's own hook, or with the one after the socket buffer is made.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if_link.h#L1348>
/// (`XDP_FLAGS_*`)
pub(crate) const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
/// See [`XDP_FLAGS_SKB_MODE`].
pub(crate) const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The header in front of a frame when `PACKET_VNET_HDR` is on. All fields in the machine's byte
/// order. <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/virtio_net.h#L186>
/// (`struct virtio_net_hdr`)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct VirtioNetHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_bytes: u16,
    pub(crate) gso_size: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

/// The checksum field holds the pseudo-header's sum only.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/virtio_net.h#L131>
pub(crate) const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
/// The kernel or the device has verified the checksum.
pub(crate) const VIRTIO_NET_HDR_F_DATA_VALID: u8 = 2;
/// One frame, not several in one.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/virtio_net.h#L136>
pub(crate) const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub(crate) const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
/// TCP over IPv6.
pub(crate) const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
/// Set in addition when the TCP header has CWR.
pub(crate) const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

/// Calls of the ethtool ioctl.
/// <https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/ethtool.h#L1839>
pub(crate) const ETHTOOL_GGRO: u32 = 0x0000_002b;
/// See [`ETHTOOL_GGRO`].
pub(crate) const ETHTOOL_SGRO: u32 = 0x0000_002c;
/// See [`ETHTOOL_GGRO`].
pub(crate) const ETHTOOL_GDRVINFO: u32 = 0x0000_0003;
/// See [`ETHTOOL_GGRO`].
pub(crate) const ETHTOOL_GCHANNELS: u32 = 0x0000_003c;

/// What `ETHTOOL_GGRO` and `ETHTOOL_SGRO` exchange (`struct ethtool_value`).
#[repr(C)]
pub(crate) struct EthtoolValue {
    pub(crate) command: u32,
    pub(crate) data: u32,
}

/// What `ETHTOOL_GDRVINFO` exchanges (`struct ethtool_drvinfo`).
#[repr(C)]
pub(crate) struct EthtoolDriver {
    pub(crate) command: u32,
    /// Ends with a zero byte.
    pub(crate) name: [u8; 32],
    pub(crate) rest: [u8; 160],
}

/// What `ETHTOOL_GCHANNELS` exchanges (`struct ethtool_channels`).
#[derive(Default)]
#[repr(C)]
pub(crate) struct EthtoolChannels {
    pub(crate) command: u32,
    pub(crate) max_rx: u32,
    pub(crate) max_tx: u32,
    pub(crate) max_other: u32,
    pub(crate) max_combined: u32,
    pub(crate) rx: u32,
    pub(crate) tx: u32,
    pub(crate) other: u32,
    pub(crate) combined: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<Descriptor>(), 16);
        assert_eq!(size_of::<RingOffset>(), 32);
        assert_eq!(size_of::<MmapOffsets>(), 128);
        assert_eq!(size_of::<XdpStatistics>(), 48);
        assert_eq!(size_of::<VirtioNetHeader>(), 10);
        assert_eq!(size_of::<EthtoolValue>(), 8);
        assert_eq!(size_of::<EthtoolChannels>(), 36);
    }
}
