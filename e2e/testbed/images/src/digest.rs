//! Digests as images spell them.

use std::fmt::Write;

/// `sha256:` and 64 hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold("sha256:".into(), |mut all, b| {
        // Writing to a string cannot fail.
        let _ = write!(all, "{b:02x}");
        all
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_well_known_one() {
        assert_eq!(
            super::sha256(b""),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
