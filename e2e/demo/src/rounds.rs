//! Medians of rounds that take turns, so that what else goes on at the machine hits both sides alike.

use serde::Serialize;

/// One figure over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The middle of the rounds.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// All, in the order of the rounds.
    pub rounds: Vec<f64>,
}

impl Figure {
    /// Of at least one value.
    pub fn of(rounds: &[f64]) -> Self {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            rounds: rounds.to_vec(),
        }
    }

    /// `median (min to max)`, rounded.
    pub fn text(&self) -> String {
        format!("{:.0} ({:.0} to {:.0})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_rounds() {
        assert_eq!(Figure::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Figure::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let one = Figure::of(&[7.0]);
        assert_eq!((one.median, one.min, one.max), (7.0, 7.0, 7.0));
    }
}
