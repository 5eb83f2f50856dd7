//! Texts and label sets that are kept once however often they occur.
//!
//! Owns no meaning. What nobody else holds any more is let go when the tables have doubled since
//! the last sweep, so they are never more than twice as large as what is in use.

use crate::{LIMIT_ANNOTATION_BYTES, Labels, Text};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Below it no sweep: a table of this size is nothing.
const SWEEP_MIN: usize = 1_024;

/// Keeps equal texts and label sets once.
#[derive(Debug, Default)]
pub struct Interner {
    texts: BTreeSet<Text>,
    labels: BTreeSet<Arc<BTreeMap<Text, Text>>>,
    texts_swept: usize,
    labels_swept: usize,
}

impl Interner {
    /// Without anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The kept copy of a text.
    pub fn text(&mut self, text: &str) -> Text {
        if let Some(kept) = self.texts.get(text) {
            return Arc::clone(kept);
        }
        if self.texts.len() >= (2 * self.texts_swept).max(SWEEP_MIN) {
            self.texts.retain(|kept| Arc::strong_count(kept) > 1);
            self.texts_swept = self.texts.len();
        }
        let kept: Text = text.into();
        self.texts.insert(Arc::clone(&kept));
        kept
    }

    /// The kept copy of a set of labels.
    pub fn labels<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let set: BTreeMap<Text, Text> =
            pairs.into_iter().map(|(key, value)| (self.text(key), self.text(value))).collect();
        if let Some(kept) = self.labels.get(&set) {
            return Labels::from_shared(Arc::clone(kept));
        }
        if self.labels.len() >= (2 * self.labels_swept).max(SWEEP_MIN) {
            self.labels.retain(|kept| Arc::strong_count(kept) > 1);
            self.labels_swept = self.labels.len();
        }
        let kept = Arc::new(set);
        self.labels.insert(Arc::clone(&kept));
        Labels::from_shared(kept)
    }

    /// Those annotations of a Pod that can be weights: the values of others are too long. The
    /// deletion cost is left out, because we write it ourselves and each write would look like a
    /// change of the Pod.
    pub fn annotations<'a>(
        &mut self,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Labels {
        self.labels(pairs.into_iter().filter(|(key, value)| {
            value.len() <= LIMIT_ANNOTATION_BYTES && *key != crate::DELETION_COST_ANNOTATION
        }))
    }

    /// Texts and label sets that are kept at present.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.texts.len(), self.labels.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_and_labels_are_one() {
        let mut interner = Interner::new();
        assert!(Arc::ptr_eq(&interner.text("a"), &interner.text("a")));
        let one = interner.labels([("app", "web"), ("tier", "front")]);
        let other = interner.labels([("tier", "front"), ("app", "web")]);
        assert!(Arc::ptr_eq(one.shared(), other.shared()));
    }

    #[test]
    fn what_nobody_holds_is_let_go() {
        let mut interner = Interner::new();
        let held: Vec<Text> = (0..100).map(|i| interner.text(&format!("held-{i}"))).collect();
        let labels = interner.labels([("held", "yes")]);
        for i in 0..20 * SWEEP_MIN {
            interner.text(&format!("passing-{i}"));
            let passing = format!("{i}");
            interner.labels([("passing", passing.as_str())]);
            let (texts, sets) = interner.kept();
            assert!(texts <= 2 * SWEEP_MIN + 200, "{texts}");
            assert!(sets <= 2 * SWEEP_MIN, "{sets}");
        }
        for (i, text) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(text, &interner.text(&format!("held-{i}"))));
        }
        assert!(Arc::ptr_eq(labels.shared(), interner.labels([("held", "yes")]).shared()));
    }

    #[test]
    fn annotations_keep_what_can_be_a_weight() {
        let mut interner = Interner::new();
        let long = "x".repeat(LIMIT_ANNOTATION_BYTES + 1);
        let kept = interner.annotations([
            ("weight", "20"),
            ("config", long.as_str()),
            (crate::DELETION_COST_ANNOTATION, "5"),
        ]);
        assert_eq!(kept.iter().collect::<Vec<_>>(), [("weight", "20")]);
    }
}
