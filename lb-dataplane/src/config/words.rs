//! What the YAML reader complains of, in words that tell an admin what to write.

/// Says what a type expects where the YAML reader only says that a value is not of it.
///
/// The reader's message for a number that does not fit is `invalid u16`; an admin needs the range.
pub fn in_words(message: String) -> String {
    let range = |max: u64| format!("expected a whole number from 0 to {max}");
    match message.strip_prefix("invalid ") {
        Some("u8") => range(u64::from(u8::MAX)),
        Some("u16") => range(u64::from(u16::MAX)),
        Some("u32") => range(u64::from(u32::MAX)),
        Some("u64") => range(u64::MAX),
        Some("bool") => "expected true or false".to_owned(),
        _ => message,
    }
}

/// The name of the field that is not there, if that is what the reader complains of.
pub fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split_once('`').map(|(name, _)| name)
}
