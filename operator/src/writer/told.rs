//! What policies were told of Services that cannot be made. Owns that; it says nothing itself.

use baton_index::{Key, Text};
use std::collections::BTreeMap;

/// A policy may go before its Service is made, of which nothing is heard here. What gives way is
/// told once more.
const TOLD_MAX: usize = 1_024;

/// Of each Service that is not made or mended, which policy was told why.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<Key, (Text, String)>);

impl Told {
    /// Whether the policy of this uid is told something else of its Service than before.
    pub fn is_news(&mut self, key: &Key, uid: &Text, words: Option<&str>) -> bool {
        let Some(words) = words else {
            return self.0.remove(key).is_some();
        };
        let now = (uid.clone(), words.to_owned());
        let is_news = self.0.get(key) != Some(&now);
        if !self.0.contains_key(key) && self.0.len() == TOLD_MAX {
            self.0.pop_first();
        }
        self.0.insert(key.clone(), now);
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_policies_were_told_takes_bounded_room() {
        let mut told = Told::default();
        let key = |n: usize| Key::new("shop", format!("{n:04}"));
        let is_news = |n, told: &mut Told| told.is_news(&key(n), &"u".into(), Some("a quota"));
        assert!((0..=TOLD_MAX).all(|n| is_news(n, &mut told)));
        assert_eq!(told.0.len(), TOLD_MAX);
        assert!(!is_news(TOLD_MAX, &mut told), "once");
        assert!(is_news(0, &mut told), "it gave way");
        assert!(told.is_news(&key(0), &"u".into(), None));
        assert_eq!(told.0.len(), TOLD_MAX - 1);
    }
}
