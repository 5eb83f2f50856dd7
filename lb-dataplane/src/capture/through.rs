//! Frames through the engine, past a tap if there is one: the one place where both meet.
//!
//! Owns the order: the tap sees a frame before the engine changes it, what the engine sends as it
//! is sent, and what becomes of the frame itself last, as they leave. Without a tap it costs one
//! branch for each of these.

use super::Tap;
use baton_api::MigrateReply;
use baton_engine::{Engine, Instant, MigrateError, MigrateOrder, Output, Verdict};

/// The engine's way out, past the tap.
struct Past<'a, O>(&'a mut O, Option<&'a mut Tap>);

impl<O: Output> Output for Past<'_, O> {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.0.frame()
    }

    #[inline]
    fn send(&mut self, len: usize) {
        if let Some(tap) = &mut self.1
            && let Some(frame) = self.0.frame()
        {
            tap.outgoing(&frame[..len.min(frame.len())]);
        }
        self.0.send(len);
    }
}

/// Gives the engine a frame.
#[inline]
pub fn frame(
    engine: &mut Engine,
    mut tap: Option<&mut Tap>,
    now: Instant,
    buffer: &mut [u8],
    len: usize,
    out: &mut impl Output,
) -> Verdict {
    if let Some(tap) = &mut tap {
        tap.incoming(engine, &buffer[..len.min(buffer.len())]);
    }
    let mut past = Past(out, tap.as_deref_mut());
    let verdict = engine.frame(now, buffer, len, &mut past);
    if let Some(tap) = tap {
        if let Verdict::Transmit(len) = verdict {
            tap.outgoing(&buffer[..len.min(buffer.len())]);
        }
        tap.settle(engine, now);
    }
    verdict
}

/// Has the engine do what is due.
pub fn poll(engine: &mut Engine, tap: Option<&mut Tap>, now: Instant, out: &mut impl Output) {
    past(engine, tap, now, out, |engine, out| engine.poll(now, out));
}

/// Has the engine do a piece of what was ordered.
pub fn migrate_piece(
    engine: &mut Engine,
    tap: Option<&mut Tap>,
    now: Instant,
    order: &mut MigrateOrder,
    out: &mut impl Output,
) -> Option<Result<MigrateReply, MigrateError>> {
    past(engine, tap, now, out, |engine, out| engine.migrate_piece(now, order, out))
}

fn past<O: Output, T>(
    engine: &mut Engine,
    mut tap: Option<&mut Tap>,
    now: Instant,
    out: &mut O,
    act: impl FnOnce(&mut Engine, &mut Past<'_, O>) -> T,
) -> T {
    let result = act(engine, &mut Past(out, tap.as_deref_mut()));
    if let Some(tap) = tap {
        tap.settle(engine, now);
    }
    result
}
