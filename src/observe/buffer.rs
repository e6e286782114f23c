//! What waits to be written, notes for the audit log and lines of the log: bounded by the memory that it takes, and never waited
//! for by who brings some.
//!
//! Who writes them takes all at once, and then lets a moment pass in which notes gather: in a storm nobody is woken up for each
//! of them.

use std::mem;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

/// Notes of several hundred bytes gather for so long; who looks at the log with his own eyes does not see it.
const GATHER: Duration = Duration::from_millis(50);

/// Between those who bring notes and the one who writes them. The lock is held for a few instructions, whoever holds it.
#[derive(Debug)]
pub(super) struct Buffer<T> {
    most: usize,
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting<T> {
    notes: Vec<(T, usize)>,
    /// What they weigh, with those that are being written.
    weight: usize,
    /// The writer is to be woken up by the next note.
    asleep: bool,
    closed: bool,
}

impl<T> Buffer<T> {
    /// For notes that weigh no more than `most` together.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            waiting: Mutex::new(Waiting {
                notes: Vec::new(),
                weight: 0,
                asleep: false,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whether there was room for the note.
    pub(super) fn push(&self, note: T, weight: usize) -> bool {
        let mut waiting = self.waiting();
        let together = waiting.weight.saturating_add(weight);
        if together > self.most || waiting.closed {
            return false;
        }
        let half = self.most / 2;
        let fills = waiting.weight <= half && together > half;
        waiting.weight = together;
        waiting.notes.push((note, weight));
        let wake = mem::take(&mut waiting.asleep) || fills;
        drop(waiting);
        if wake {
            self.changed.notify_one();
        }
        true
    }

    /// Takes what there is, or what comes. `false` when nothing more will.
    pub(super) fn take(&self, notes: &mut Vec<(T, usize)>) -> bool {
        let half = self.most / 2;
        let gathering = |waiting: &mut Waiting<T>| !waiting.closed && waiting.weight <= half;
        let gathered = self
            .changed
            .wait_timeout_while(self.waiting(), GATHER, gathering);
        let (mut waiting, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        while waiting.notes.is_empty() && !waiting.closed {
            waiting.asleep = true;
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        waiting.asleep = false;
        mem::swap(&mut waiting.notes, notes);
        !notes.is_empty()
    }

    /// Notes of this weight have been written.
    pub(super) fn written(&self, weight: usize) {
        let mut waiting = self.waiting();
        waiting.weight = waiting.weight.saturating_sub(weight);
    }

    /// No more notes are taken; those that are there can still be written.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.changed.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_until_something_is_written() {
        let buffer = Buffer::new(10);
        assert!(buffer.push("a", 6));
        assert!(!buffer.push("b", 5));
        assert!(buffer.push("c", 4));
        let mut taken = Vec::new();
        assert!(buffer.take(&mut taken));
        assert_eq!(taken, [("a", 6), ("c", 4)]);
        // It is still in memory.
        assert!(!buffer.push("d", 1));
        buffer.written(6);
        assert!(buffer.push("e", 6));
    }

    #[test]
    fn what_came_before_the_end_is_taken_and_nothing_after_it() {
        let buffer = Buffer::new(10);
        assert!(buffer.push(1, 1));
        buffer.close();
        assert!(!buffer.push(2, 1));
        let mut taken = Vec::new();
        assert!(buffer.take(&mut taken));
        assert_eq!(taken, [(1, 1)]);
        taken.clear();
        assert!(!buffer.take(&mut taken));
    }

    #[test]
    fn many_bring_and_one_takes_and_nothing_is_lost() {
        const EACH: u64 = 20_000;
        let buffer = Arc::new(Buffer::new(usize::MAX));
        let bringing: Vec<_> = (0..4)
            .map(|_| {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || (1..=EACH).for_each(|n| assert!(buffer.push(n, 1))))
            })
            .collect();
        let taking = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                let (mut sum, mut taken) = (0, Vec::new());
                while buffer.take(&mut taken) {
                    sum += taken.drain(..).map(|(n, _)| n).sum::<u64>();
                }
                sum
            })
        };
        bringing
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        buffer.close();
        assert_eq!(taking.join().unwrap(), 4 * EACH * (EACH + 1) / 2);
    }
}
