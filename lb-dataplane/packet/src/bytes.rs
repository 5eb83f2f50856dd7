//! Access to bytes at an offset that cannot panic. Owns no meaning.

/// The `N` bytes at `at`, if they are all there.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

/// The `N` bytes at `at`, if they are all there.
#[inline(always)]
pub(crate) fn array_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// A big-endian number of a fixed header. `AT` is checked when the program is compiled.
#[inline(always)]
pub(crate) fn be16<const N: usize, const AT: usize>(header: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_be_bytes([header[AT], header[AT + 1]])
}

/// A big-endian number of a fixed header. `AT` is checked when the program is compiled.
#[inline(always)]
pub(crate) fn be32<const N: usize, const AT: usize>(header: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_be_bytes([header[AT], header[AT + 1], header[AT + 2], header[AT + 3]])
}
