//! Any segmentation of a conversation tells the same as the whole, whatever was done to its bytes;
//! and no bytes panic.

use crate::support::{Checked, Seen, Turn, said, seen, turns};
use baton_guard::Guard;
use proptest::prelude::*;
use std::{fs, path::Path};

fn recorded() -> Vec<(Guard, Vec<Turn>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("the folder of recordings")
        .map(|e| e.expect("an entry").path())
        .collect();
    paths.sort();
    paths.iter().map(|p| turns(&fs::read_to_string(p).expect("a recording"))).collect()
}

fn tell(guard: Guard, turns: &[Turn], sizes: &[usize]) -> Vec<Seen> {
    let mut checked = Checked::new(guard);
    turns
        .iter()
        .map(|turn| {
            checked.tell_in(turn, sizes);
            seen(&checked.tracker).settled()
        })
        .collect()
}

/// One thing done to a conversation.
#[derive(Clone, Debug)]
enum Change {
    Byte(usize, usize, u8),
    Insert(usize, usize, u8),
    Remove(usize, usize),
    Gap(usize, u32),
    Side(usize),
    Swap(usize, usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let byte =
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':'), b'0'..=b'9', any::<u8>()];
    let (i, at) = (any::<usize>(), any::<usize>());
    let one = prop_oneof![
        4 => (i, at, byte.clone()).prop_map(|(i, at, b)| Change::Byte(i, at, b)),
        2 => (i, at, byte).prop_map(|(i, at, b)| Change::Insert(i, at, b)),
        2 => (i, at).prop_map(|(i, at)| Change::Remove(i, at)),
        1 => (i, 0..200_u32).prop_map(|(i, gap)| Change::Gap(i, gap)),
        1 => i.prop_map(Change::Side),
        1 => (i, at).prop_map(|(i, j)| Change::Swap(i, j)),
    ];
    prop::collection::vec(one, 0..4)
}

fn change(turns: &mut [Turn], change: &Change) {
    let count = turns.len();
    let turn = |i: usize| i % count;
    match *change {
        Change::Byte(i, at, byte) => {
            let data = &mut turns[turn(i)].data;
            let at = at % data.len().max(1);
            if let Some(b) = data.get_mut(at) {
                *b = byte;
            }
        }
        Change::Insert(i, at, byte) => {
            let data = &mut turns[turn(i)].data;
            data.insert(at % (data.len() + 1), byte);
        }
        Change::Remove(i, at) => {
            let data = &mut turns[turn(i)].data;
            if !data.is_empty() {
                data.remove(at % data.len());
            }
        }
        Change::Gap(i, gap) => turns[turn(i)].gap = gap,
        Change::Side(i) => turns[turn(i)].client ^= true,
        Change::Swap(i, j) => turns.swap(turn(i), turn(j)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn pieces_tell_what_the_whole_tells(
        which in any::<prop::sample::Index>(),
        changes in changes(),
        sizes in prop::collection::vec(1..40_usize, 1..6),
    ) {
        let all = recorded();
        let (guard, mut turns) = all[which.index(all.len())].clone();
        for one in &changes {
            change(&mut turns, one);
        }
        let whole = tell(guard, &turns, &[usize::MAX]);
        prop_assert_eq!(&whole, &tell(guard, &turns, &sizes));
        prop_assert_eq!(&whole, &tell(guard, &turns, &[1]));
    }

    #[test]
    fn random_bytes_are_told_alike_and_never_panic(
        guard in prop_oneof![Just(Guard::Http1), Just(Guard::Resp), Just(Guard::Memcached)],
        random in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..60)), 0..6),
        sizes in prop::collection::vec(1..9_usize, 1..4),
    ) {
        let turns: Vec<Turn> = random.iter().map(|(client, data)| said(*client, data)).collect();
        prop_assert_eq!(tell(guard, &turns, &[usize::MAX]), tell(guard, &turns, &sizes));
    }
}

/// Cut at each place once, each recorded conversation goes on the same.
#[test]
fn cut_at_each_place() {
    for (guard, turns) in recorded() {
        let whole = tell(guard, &turns, &[usize::MAX]);
        for cut in 1..turns.iter().map(|t| t.data.len()).max().unwrap_or(0) {
            assert_eq!(whole, tell(guard, &turns, &[cut, usize::MAX]));
        }
    }
}
