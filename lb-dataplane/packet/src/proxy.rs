//! The PROXY protocol's header, version 2: what a connection's first bytes tell a server of its
//! client. Owns its layout; never where it goes. Source: section 2.2 of
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.

use core::net::{IpAddr, SocketAddr};

/// Type of the one field (TLV) that is written behind the addresses: the listener's name, in UTF-8.
/// One of those that applications may use (`PP2_TYPE_MIN_CUSTOM` to `PP2_TYPE_MAX_CUSTOM`).
pub const PROXY_LISTENER_TLV: u8 = 0xeb;
/// A longer name is left out. Snapshots have none (`baton_api::LIMIT_NAME_BYTES`).
pub const PROXY_LISTENER_MAX: usize = 143;
/// The longest header.
pub const PROXY_HEADER_MAX: usize = FIXED_BYTES + V6_ADDRESSES + TLV_BYTES + PROXY_LISTENER_MAX;
/// A header that says that the sender speaks for itself (`LOCAL`), as health checks do.
pub const PROXY_LOCAL: [u8; FIXED_BYTES] = *b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;
const TLV_BYTES: usize = 3;
/// Both addresses and ports.
const V4_ADDRESSES: usize = 12;
const V6_ADDRESSES: usize = 36;
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
/// Family and protocol: TCP over IPv4, over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// How many bytes [`proxy_header`] writes.
#[inline]
#[must_use]
pub fn proxy_header_len(is_v6: bool, listener: &str) -> usize {
    let addresses = if is_v6 { V6_ADDRESSES } else { V4_ADDRESSES };
    let tlv = match listener.len() {
        1..=PROXY_LISTENER_MAX => TLV_BYTES + listener.len(),
        _ => 0,
    };
    FIXED_BYTES + addresses + tlv
}

/// Writes the header for a connection of `client` to `server`, the address that it connected to, of
/// the same family. The number of bytes; none where the families differ.
///
/// ```
/// use baton_packet::{PROXY_HEADER_MAX, proxy_header, proxy_header_len};
/// let mut bytes = [0; PROXY_HEADER_MAX];
/// let (client, server) = ("10.1.2.3:40000".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
/// let len = proxy_header(&mut bytes, client, server, "shop/web/http").unwrap();
/// assert_eq!(len, proxy_header_len(false, "shop/web/http"));
/// assert_eq!(bytes[16..20], [10, 1, 2, 3]);
/// ```
#[must_use]
pub fn proxy_header(
    bytes: &mut [u8; PROXY_HEADER_MAX],
    client: SocketAddr,
    server: SocketAddr,
    listener: &str,
) -> Option<usize> {
    let is_v6 = client.is_ipv6();
    let len = proxy_header_len(is_v6, listener);
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(SIGNATURE);
    put(&[PROXY, if is_v6 { TCP6 } else { TCP4 }]);
    put(&((len - FIXED_BYTES) as u16).to_be_bytes());
    match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            put(&client.octets());
            put(&server.octets());
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            put(&client.octets());
            put(&server.octets());
        }
        _ => return None,
    }
    put(&client.port().to_be_bytes());
    put(&server.port().to_be_bytes());
    if (1..=PROXY_LISTENER_MAX).contains(&listener.len()) {
        put(&[PROXY_LISTENER_TLV]);
        put(&(listener.len() as u16).to_be_bytes());
        put(listener.as_bytes());
    }
    debug_assert_eq!(at, len);
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(client: &str, server: &str, listener: &str) -> Option<Vec<u8>> {
        let mut bytes = [0xaa; PROXY_HEADER_MAX];
        let len = proxy_header(
            &mut bytes,
            client.parse().expect("client"),
            server.parse().expect("server"),
            listener,
        )?;
        Some(bytes[..len].to_vec())
    }

    /// The layout of section 2.2, written out.
    #[test]
    fn a_header_says_who_connected_where() {
        let mut v4 = SIGNATURE.to_vec();
        v4.extend([0x21, 0x11, 0, 12 + 3 + 5, 10, 1, 2, 3, 10, 0, 0, 1]);
        v4.extend([0x9c, 0x40, 0, 80, 0xeb, 0, 5]);
        v4.extend(b"a/b/c");
        assert_eq!(header("10.1.2.3:40000", "10.0.0.1:80", "a/b/c"), Some(v4));
        let mut v6 = SIGNATURE.to_vec();
        v6.extend([0x21, 0x21, 0, 36]);
        v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        v6.extend([0x9c, 0x40, 0, 80]);
        assert_eq!(header("[fd00::1]:40000", "[fd00::2]:80", ""), Some(v6));
        assert_eq!(header("[fd00::1]:40000", "10.0.0.1:80", ""), None);
    }

    #[test]
    fn a_name_that_is_too_long_is_left_out_and_the_longest_fits() {
        let longest = "n".repeat(PROXY_LISTENER_MAX);
        let with = header("[fd00::1]:1", "[fd00::2]:2", &longest).expect("a header");
        assert_eq!(with.len(), PROXY_HEADER_MAX);
        let without = header("[fd00::1]:1", "[fd00::2]:2", &format!("{longest}n"));
        assert_eq!(without, header("[fd00::1]:1", "[fd00::2]:2", ""));
    }

    #[test]
    fn a_local_header_has_no_addresses() {
        assert_eq!(PROXY_LOCAL[..12], *SIGNATURE);
        assert_eq!(PROXY_LOCAL[12..], [0x20, 0, 0, 0]);
    }
}
