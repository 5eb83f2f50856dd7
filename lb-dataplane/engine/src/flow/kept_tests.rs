//! Tests of `kept`.

use proptest::prelude::*;

use super::*;

fn used(kept: &Kept) -> u32 {
    kept.used().all
}

fn kept_frames(kept: &Kept, list: KeptList) -> Vec<Vec<u8>> {
    kept.iter(list).map(<[u8]>::to_vec).collect()
}

#[test]
fn a_list_goes_in_front_of_another() {
    let mut kept = Kept::new(5);
    let mut lists = [KeptList::default(); 2];
    for (list, frame) in [(0, b"1"), (0, b"2"), (1, b"3"), (1, b"4")] {
        assert!(kept.push(&mut lists[list], frame, KEPT_PER_FLOW_MAX));
    }
    let [first, mut list] = lists;
    kept.is_incomplete(first, 7);
    kept.prepend(first, &mut list);
    kept.prepend(KeptList::default(), &mut list);
    assert!(kept.push(&mut list, b"5", KEPT_PER_FLOW_MAX));
    assert_eq!(kept_frames(&kept, list), [b"1", b"2", b"3", b"4", b"5"]);
    assert_eq!((kept.count(list), kept.incomplete().count()), (5, 0));
    for left in (0..5).rev() {
        kept.pop(&mut list);
        assert_eq!((kept.count(list), used(&kept)), (left, u32::from(left)));
    }
    let mut empty = KeptList::default();
    assert!(kept.push(&mut list, b"6", KEPT_PER_FLOW_MAX));
    kept.prepend(list, &mut empty);
    assert_eq!(kept_frames(&kept, empty), [b"6"]);
}

#[test]
fn a_list_is_4_bytes() {
    assert_eq!(size_of::<KeptList>(), 4);
}

#[test]
fn keeps_copies_in_order_and_gives_them_back() {
    let mut kept = Kept::new(3);
    let mut list = KeptList::default();
    assert!(list.is_empty() && kept_frames(&kept, list).is_empty());
    for frame in [&b"GET / "[..], b"", b"HTTP/1.1"] {
        assert!(kept.push(&mut list, frame, KEPT_PER_FLOW_MAX));
    }
    assert_eq!(kept_frames(&kept, list), [&b"GET / "[..], b"", b"HTTP/1.1"]);
    assert_eq!((used(&kept), kept.capacity().all, kept.count(list)), (3, 3, 3));
    kept.clear(&mut list);
    assert!(list.is_empty() && kept_frames(&kept, list).is_empty());
    assert_eq!(used(&kept), 0);
    kept.clear(&mut list);
    assert_eq!(used(&kept), 0);
}

#[test]
fn refuses_what_is_too_long() {
    let mut kept = Kept::new(1);
    let mut list = KeptList::default();
    assert!(!kept.push(&mut list, &[1; KEPT_BYTES + 1], KEPT_PER_FLOW_MAX));
    assert!(list.is_empty());
    assert!(kept.push(&mut list, &[2; KEPT_BYTES], KEPT_PER_FLOW_MAX));
    assert_eq!(kept_frames(&kept, list), [[2; KEPT_BYTES]]);
}

#[test]
fn refuses_more_than_a_flow_may_keep() {
    let mut kept = Kept::new(20);
    let mut list = KeptList::default();
    for number in 0..KEPT_PER_FLOW_MAX {
        assert!(kept.push(&mut list, &[number as u8], KEPT_PER_FLOW_MAX));
    }
    assert!(!kept.push(&mut list, b"one more", KEPT_PER_FLOW_MAX));
    assert_eq!(kept_frames(&kept, list).len(), 8);
    assert_eq!(used(&kept), 8);
}

#[test]
fn refuses_when_the_pool_is_empty() {
    let mut kept = Kept::new(2);
    let (mut first, mut second) = (KeptList::default(), KeptList::default());
    assert!(
        kept.push(&mut first, b"a", KEPT_PER_FLOW_MAX)
            && kept.push(&mut second, b"b", KEPT_PER_FLOW_MAX)
    );
    assert!(!kept.push(&mut first, b"c", KEPT_PER_FLOW_MAX));
    kept.clear(&mut second);
    assert!(kept.push(&mut first, b"c", KEPT_PER_FLOW_MAX));
    assert_eq!(kept_frames(&kept, first), [b"a", b"c"]);

    let mut nothing = Kept::new(0);
    assert!(!nothing.push(&mut second, b"d", KEPT_PER_FLOW_MAX));
    assert_eq!((used(&nothing), nothing.capacity().all), (0, 0));
}

#[test]
fn a_list_that_is_used_for_ever_counts_right() {
    let mut kept = Kept::new(3);
    let mut list = KeptList::default();
    assert!(kept.push(&mut list, b"a", 3));
    for _ in 0..70_000 {
        assert!(kept.push(&mut list, b"b", 3) && kept.push(&mut list, b"c", 3));
        assert!(!kept.has_room(list, Slots::one(1), 3));
        kept.pop(&mut list);
        kept.pop(&mut list);
        assert_eq!((kept.count(list), used(&kept)), (1, 1));
    }
    kept.pop(&mut list);
    kept.pop(&mut list);
    assert!(list.is_empty() && used(&kept) == 0 && kept.count(list) == 0);
}

#[test]
fn a_short_copy_takes_a_long_slot_where_no_short_one_is_free_but_a_long_one_needs_its_own() {
    let mut kept = Kept::new(18);
    assert_eq!(kept.capacity(), Slots { all: 18, long: 16 });
    let mut lists = [KeptList::default(); 3];
    for number in 0..15 {
        assert!(kept.push(&mut lists[0], &[number; KEPT_BYTES], 20));
    }
    for (list, long) in [(1, 15), (1, 15), (2, 16)] {
        assert!(kept.push(&mut lists[list], b"short", 20));
        assert_eq!(kept.used().long, long);
    }
    assert!(!kept.push(&mut lists[1], b"short", 20));
    // A short slot that comes back is none for a full frame.
    kept.clear(&mut lists[1]);
    assert_eq!(kept.used(), Slots { all: 16, long: 16 });
    assert!(!kept.push(&mut lists[1], &[0; SHORT_BYTES + 1], 20));
    assert!(kept.push(&mut lists[1], &[0; SHORT_BYTES], 20));
    kept.clear(&mut lists[2]);
    assert!(kept.push(&mut lists[1], &[0; SHORT_BYTES + 1], 20));
    assert_eq!(kept.slots_of(lists[1]), Slots { all: 2, long: 1 });
}

#[test]
fn a_copy_is_lengthened_no_further_than_its_slot() {
    let mut kept = Kept::new(18);
    let (mut short, mut long) = (KeptList::default(), KeptList::default());
    assert!(kept.push(&mut short, b"a", 8) && kept.push(&mut long, &[1; SHORT_BYTES + 1], 8));
    for (list, room) in [(short, SHORT_BYTES), (long, KEPT_BYTES)] {
        assert!(!kept.lengthen_last(list, |slot, _| {
            assert_eq!(slot.len(), room);
            None
        }));
        assert!(kept.lengthen_last(list, |slot, _| {
            slot.fill(7);
            Some(slot.len())
        }));
        assert_eq!(kept_frames(&kept, list), [vec![7; room]]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn agrees_with_vectors(
        ops in prop::collection::vec((0..6_usize, 0..7_u8, 0..64_usize), 1..200),
    ) {
        let mut kept = Kept::new(24);
        let mut lists = [KeptList::default(); 6];
        // Each copy, and whether its slot is long.
        let mut model: [Vec<(Vec<u8>, bool)>; 6] = Default::default();
        let mut free = [8, 16];
        for (number, (flow, kind, bytes)) in ops.into_iter().enumerate() {
            if kind == 0 {
                kept.clear(&mut lists[flow]);
                model[flow].drain(..).for_each(|(_, long)| free[usize::from(long)] += 1);
            } else if kind == 1 {
                let popped = kept.pop(&mut lists[flow]);
                prop_assert_eq!(popped.all == 1, !model[flow].is_empty());
                if popped.all == 1 {
                    let (_, long) = model[flow].remove(0);
                    free[usize::from(long)] += 1;
                    prop_assert_eq!(popped.long == 1, long);
                }
            } else {
                let bytes = if kind == 6 { SHORT_BYTES + 1 + bytes } else { bytes };
                let frame = vec![number as u8; bytes];
                let long = kind == 6 || free[0] == 0;
                let fits = free[usize::from(long)] > 0
                    && model[flow].len() < usize::from(KEPT_PER_FLOW_MAX);
                // By length, or behind all.
                let later = |kept: &[u8]| kind == 5 && kept.len() > bytes;
                let list = &mut lists[flow];
                prop_assert_eq!(kept.insert(list, &frame, KEPT_PER_FLOW_MAX, later), fits);
                if fits {
                    free[usize::from(long)] -= 1;
                    // As documented, with one short cut: behind the last one if that is not
                    // later.
                    let model = &mut model[flow];
                    let last = model.last().is_none_or(|(last, _)| !later(last));
                    let at = model.iter().position(|(kept, _)| later(kept)).filter(|_| !last);
                    model.insert(at.unwrap_or(model.len()), (frame, long));
                }
            }
            for (list, copies) in lists.iter().zip(&model) {
                let frames: Vec<&[u8]> = copies.iter().map(|(frame, _)| &frame[..]).collect();
                prop_assert_eq!(kept.last(*list), frames.last().copied());
                prop_assert_eq!(kept.iter(*list).collect::<Vec<_>>(), frames);
                let long = copies.iter().filter(|(_, long)| *long).count() as u32;
                prop_assert_eq!(kept.slots_of(*list), Slots { all: copies.len() as u32, long });
            }
            let used = Slots { all: 24 - free[0] - free[1], long: 16 - free[1] };
            prop_assert_eq!(kept.used(), used);
        }
    }
}
