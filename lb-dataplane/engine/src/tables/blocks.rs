//! Which ports of a backend are busy: one bit each, in blocks that exist only where one is.
//!
//! Owns the bits of one backend and the pool of blocks that all share, so that a backend whose
//! ports nobody uses costs one block and two bytes for each other. It never grows, and knows
//! nothing of why a port is busy (`ports`).
//!
//! # Decisions
//!
//! - **Blocks come from a pool that is smaller than all bits together**: 4,096 backends with 10,000
//!   ports each had 5 MB of bits, of which 65,536 flows use one in a hundred. A backend has one
//!   block of its own, 512 ports, and takes further ones from the pool; where that is empty it goes
//!   on with the ports of the blocks that it has. Ports of one block are spread over the whole
//!   range: neighbours are in different blocks. A block is used up before the next one is begun, so
//!   that few are in use; a port that was given back still has its turn after all others.

/// Words of a block.
const WORDS: usize = 8;
/// Ports of a block.
pub(crate) const PORTS: usize = WORDS * 64;
/// One block for so many legs in the pool. Backends with fewer legs each mostly need none of it:
/// they have one of their own.
const LEGS_PER_BLOCK: usize = 16;
/// Where there is no block: nothing in it is busy.
const NONE: u16 = u16::MAX;
/// The backend's own block.
const OWN: u16 = NONE - 1;

type Block = [u64; WORDS];

/// How many blocks so many ports have.
const fn blocks_of(ports: usize) -> usize {
    ports.div_ceil(PORTS)
}

/// Blocks that backends have beside their own: a slab with a free list.
pub(crate) struct Blocks {
    /// Of a free one, the first word is the next free one.
    slots: Box<[Block]>,
    free: u16,
    used: u16,
}

impl Blocks {
    /// For so many backends with so many ports each, and so many legs in all.
    pub(crate) fn new(backends: usize, ports: usize, legs: usize) -> Self {
        let needed = backends * blocks_of(ports).saturating_sub(1);
        let count = needed.min(legs.div_ceil(LEGS_PER_BLOCK)).min(usize::from(OWN));
        let block = |at: usize| {
            let mut block = [0; WORDS];
            block[0] = if at + 1 < count { at as u64 + 1 } else { u64::from(NONE) };
            block
        };
        Self {
            slots: (0..count).map(block).collect(),
            free: if count == 0 { NONE } else { 0 },
            used: 0,
        }
    }

    /// How many are in use, and how many there are.
    pub(crate) fn used(&self) -> (u64, u64) {
        (u64::from(self.used), self.slots.len() as u64)
    }

    fn take(&mut self) -> Option<u16> {
        let id = self.free;
        let block = self.slots.get_mut(usize::from(id))?;
        self.free = std::mem::take(&mut block[0]) as u16;
        self.used += 1;
        Some(id)
    }

    fn give_back(&mut self, id: u16) {
        self.slots[usize::from(id)][0] = u64::from(self.free);
        self.free = id;
        self.used -= 1;
    }
}

/// A bit: its block, and where in it.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    word: usize,
    bit: u32,
}

/// The ports of one backend, by their offsets from the first.
#[derive(Default)]
pub(crate) struct Busy {
    count: u32,
    /// One of these that is none.
    hole: Option<u16>,
    /// Where each block is.
    ids: Box<[u16]>,
    own: Block,
    own_taken: bool,
    order: Order,
}

/// In which order ports are used: block by block, in each word by word, one of each, and of each
/// word one after the other. So one that was given back comes after those that were not in use for
/// longer. A restarted dataplane does not start where its predecessor did, and goes on in other
/// steps, so that a run of ports with stale sockets is spread out.
#[derive(Default)]
struct Order {
    /// The next word, how many a block has, and from one to the next: by `step` further, which has
    /// no divisor in common with how many there are.
    at: u8,
    words: u8,
    step: u8,
    /// Words since all had their turn.
    passed: u8,
    /// Where of a word is looked, beside what follows from its place; and how often all words of
    /// the block had their turn.
    turn: u8,
    turned: u8,
    /// The same for blocks as for words.
    block: u16,
    block_step: u16,
    key: u32,
}

/// A step that has no divisor in common with `count`.
fn step(count: usize, rng: &mut fastrand::Rng) -> usize {
    let start = rng.usize(..count);
    let mut steps = (0..count).map(|n| 1 + (start + n) % count);
    steps.find(|s| gcd(*s, count) == 1).unwrap_or(1)
}

impl Order {
    fn new(ports: usize, rng: &mut fastrand::Rng) -> Self {
        let mut rng = rng.fork();
        if ports == 0 {
            return Self::default();
        }
        let blocks = blocks_of(ports);
        let words = ports.div_ceil(blocks).div_ceil(64);
        let step_of_words = step(words, &mut rng);
        Self {
            at: rng.usize(..words) as u8,
            words: words as u8,
            step: step_of_words as u8,
            turn: rng.u32(..64) as u8,
            key: rng.u32(..) | 1,
            block: rng.usize(..blocks) as u16,
            block_step: step(blocks, &mut rng) as u16,
            ..Self::default()
        }
    }

    /// A block, a word of it, and the bit to begin with.
    fn next(&mut self, blocks: usize) -> Place {
        let (block, word) = (usize::from(self.block), usize::from(self.at));
        self.at = (self.at + self.step) % self.words;
        self.passed += 1;
        let turn = u32::from(self.turn);
        if self.passed == self.words {
            self.passed = 0;
            self.turn = (self.turn + 1) % 64;
            self.turned += 1;
            if self.turned == 64 {
                self.next_block(blocks);
            }
        }
        let own = ((block * WORDS + word) as u32).wrapping_mul(self.key) >> 26;
        let bit = (turn + own) % 64;
        Place { block, word, bit }
    }

    fn next_block(&mut self, blocks: usize) {
        self.turned = 0;
        self.block = ((usize::from(self.block) + usize::from(self.block_step)) % blocks) as u16;
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Busy {
    /// Of so many ports (at most 65,536) but one none is busy.
    pub(crate) fn new(count: usize, hole: Option<u16>, rng: &mut fastrand::Rng) -> Self {
        let blocks = blocks_of(count);
        Self {
            count: count as u32,
            hole,
            ids: vec![NONE; blocks].into_boxed_slice(),
            order: Order::new(count, rng),
            ..Self::default()
        }
    }

    /// How many blocks of the pool it has.
    pub(crate) fn pooled(&self) -> usize {
        self.ids.iter().filter(|id| **id < OWN).count()
    }

    /// How many ports there are, busy or not.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Neighbours are in different blocks.
    fn place(&self, offset: u16) -> Place {
        let (offset, blocks) = (usize::from(offset), self.ids.len());
        let at = offset / blocks;
        Place { block: offset % blocks, word: at / 64, bit: at as u32 % 64 }
    }

    fn offset(&self, place: Place) -> u16 {
        ((place.word * 64 + place.bit as usize) * self.ids.len() + place.block) as u16
    }

    /// The bits of a word that stand for ports.
    fn ports_of(&self, block: usize, word: usize) -> u64 {
        let ports = (self.count as usize).saturating_sub(block);
        let ports = ports.div_ceil(self.ids.len()).saturating_sub(word * 64);
        let bits = match ports {
            64.. => u64::MAX,
            some => (1 << some) - 1,
        };
        match self.hole.map(|hole| self.place(hole)) {
            Some(hole) if (hole.block, hole.word) == (block, word) => bits & !(1 << hole.bit),
            _ => bits,
        }
    }

    fn block<'a>(&'a self, pool: &'a Blocks, block: usize) -> Option<&'a Block> {
        match self.ids[block] {
            NONE => None,
            OWN => Some(&self.own),
            id => pool.slots.get(usize::from(id)),
        }
    }

    fn block_mut<'a>(&'a mut self, pool: &'a mut Blocks, block: usize) -> Option<&'a mut Block> {
        match self.ids[block] {
            NONE => None,
            OWN => Some(&mut self.own),
            id => pool.slots.get_mut(usize::from(id)),
        }
    }

    pub(crate) fn has(&self, pool: &Blocks, offset: u16) -> bool {
        let place = self.place(offset);
        let block = self.block(pool, place.block);
        block.is_some_and(|block| block[place.word] >> place.bit & 1 == 1)
    }

    /// Whether a block that is not there could be.
    fn may_begin(&self, pool: &Blocks) -> bool {
        !self.own_taken || pool.free != NONE
    }

    /// A port becomes busy. False if there is no room for its block.
    pub(crate) fn insert(&mut self, pool: &mut Blocks, offset: u16) -> bool {
        let place = self.place(offset);
        if self.ids[place.block] == NONE {
            let id = if self.own_taken { pool.take() } else { Some(OWN) };
            let Some(id) = id else { return false };
            self.own_taken = true;
            self.ids[place.block] = id;
        }
        if let Some(block) = self.block_mut(pool, place.block) {
            block[place.word] |= 1 << place.bit;
        }
        true
    }

    /// A port is busy no more.
    pub(crate) fn remove(&mut self, pool: &mut Blocks, offset: u16) {
        let place = self.place(offset);
        let Some(block) = self.block_mut(pool, place.block) else {
            return;
        };
        block[place.word] &= !(1 << place.bit);
        if block.iter().all(|word| *word == 0) {
            match std::mem::replace(&mut self.ids[place.block], NONE) {
                OWN => self.own_taken = false,
                id => pool.give_back(id),
            }
        }
    }

    /// The bits of a word that stand for ports which are not busy and may be.
    fn free(&self, pool: &Blocks, block: usize, word: usize) -> u64 {
        let ports = self.ports_of(block, word);
        match self.block(pool, block) {
            Some(busy) => ports & !busy[word],
            None if self.may_begin(pool) => ports,
            None => 0,
        }
    }

    /// Whether [`Busy::take_next`] finds one of those that are not busy, of which there are some.
    pub(crate) fn has_next(&self, pool: &Blocks) -> bool {
        let any = |block| (0..WORDS).any(|word| self.free(pool, block, word) != 0);
        self.may_begin(pool) || (0..self.ids.len()).any(any)
    }

    /// The next port in the order that is not busy, and may be; it is from now on.
    pub(crate) fn take_next(&mut self, pool: &mut Blocks) -> Option<u16> {
        let blocks = self.ids.len();
        // All blocks, at most 128, and the first once more, some of whose words were passed over;
        // nearly always the first word has one.
        for _ in 0..=blocks {
            let first = self.order.block;
            for _ in 0..self.order.words {
                let Place { block, word, bit } = self.order.next(blocks);
                let free = self.free(pool, block, word);
                if free != 0 {
                    let bit = (free.rotate_right(bit).trailing_zeros() + bit) % 64;
                    let offset = self.offset(Place { block, word, bit });
                    return self.insert(pool, offset).then_some(offset);
                }
            }
            if self.order.block == first {
                self.order.next_block(blocks);
            }
        }
        None
    }

    /// The first busy port from a place in the order of blocks on, and the place behind it.
    pub(crate) fn next_busy(&self, pool: &Blocks, from: usize) -> Option<(u16, usize)> {
        let mut bits = u64::MAX << (from % 64);
        let mut word = from % PORTS / 64;
        for block in from / PORTS..self.ids.len() {
            let Some(busy) = self.block(pool, block) else {
                (word, bits) = (0, u64::MAX);
                continue;
            };
            for (word, busy) in busy.iter().enumerate().skip(word) {
                let rest = busy & std::mem::replace(&mut bits, u64::MAX);
                if rest != 0 {
                    let bit = rest.trailing_zeros();
                    let behind = block * PORTS + word * 64 + bit as usize + 1;
                    return Some((self.offset(Place { block, word, bit }), behind));
                }
            }
            word = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn busy_of(busy: &Busy, pool: &Blocks) -> BTreeSet<u16> {
        let mut from = 0;
        let next = || {
            let (offset, behind) = busy.next_busy(pool, from)?;
            from = behind;
            Some(offset)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn it_is_a_set_of_offsets_that_gives_its_blocks_back() {
        let mut rng = fastrand::Rng::with_seed(5);
        for count in [2, 64, 511, 512, 513, 10_000, 65_536] {
            let mut pool = Blocks::new(1, count, 1 << 20);
            let hole = rng.usize(..count) as u16;
            let mut busy = Busy::new(count, Some(hole), &mut rng);
            let mut model = BTreeSet::new();
            for turn in 0..3_000 {
                let offset = rng.usize(..count) as u16;
                if offset == hole {
                    continue;
                }
                assert_eq!(busy.has(&pool, offset), model.contains(&offset));
                match rng.u8(..4) {
                    0 => {
                        busy.remove(&mut pool, offset);
                        model.remove(&offset);
                    }
                    1 => {
                        assert!(busy.insert(&mut pool, offset));
                        model.insert(offset);
                    }
                    _ => {
                        let some = model.len() < count - 1;
                        assert!(!some || busy.has_next(&pool));
                        let next = busy.take_next(&mut pool);
                        assert_eq!(next.is_some(), some, "{turn} of {count}");
                        assert!(next.is_none_or(|next| next != hole && model.insert(next)));
                    }
                }
            }
            assert_eq!(busy_of(&busy, &pool), model, "{count}");
            for offset in model {
                busy.remove(&mut pool, offset);
            }
            assert_eq!(pool.used().0, 0);
        }
    }

    #[test]
    fn one_block_is_used_up_before_another_is_begun() {
        let mut rng = fastrand::Rng::with_seed(6);
        let mut pool = Blocks::new(2, 10_000, 1 << 20);
        let mut busy = Busy::new(10_000, None, &mut rng);
        let offsets: BTreeSet<u16> =
            (0..400).map(|_| busy.take_next(&mut pool).expect("one")).collect();
        assert!(pool.used().0 <= 1, "two blocks at most: the first begins anywhere");
        let apart = offsets.iter().zip(offsets.iter().skip(1));
        assert!(apart.filter(|(a, b)| *b - *a == 1).count() <= 1 + 400 / 2);
    }

    #[test]
    fn without_a_block_to_begin_it_goes_on_with_those_that_it_has() {
        let mut rng = fastrand::Rng::with_seed(7);
        // One block for both.
        let mut pool = Blocks::new(2, 10_000, 16);
        assert_eq!(pool.used(), (0, 1));
        let mut all = [(); 2].map(|()| Busy::new(10_000, None, &mut rng));
        for (busy, ports) in all.iter_mut().zip([2 * PORTS, PORTS]) {
            let mut taken = BTreeSet::new();
            while busy.has_next(&pool) {
                assert!(taken.insert(busy.take_next(&mut pool).expect("one")));
            }
            assert_eq!(busy.take_next(&mut pool), None);
            // Of 10,000 ports a block has 500.
            assert_eq!(taken.len(), ports / PORTS * 500);
        }
        let first = busy_of(&all[0], &pool);
        for offset in first {
            all[0].remove(&mut pool, offset);
        }
        assert!(all[1].has_next(&pool), "a block came back");
    }
}
