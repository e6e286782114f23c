//! A lock for a mutex that is contended and held for some tens of nanoseconds.

use parking_lot::{Mutex, MutexGuard};
use std::hint::spin_loop;

/// The attempts before the thread sleeps. The pause doubles after each.
const SPIN_ATTEMPTS: u32 = 8;

/// The spins of the first pause: about as long as the lock is held.
const INITIAL_SPINS: u32 = 16;

/// Locks the mutex, with pauses while another thread holds it. Two threads that contend for its
/// cache line take three times as long for a decision as one alone (`benches/buckets.rs`).
pub fn spin_lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for n in 0..SPIN_ATTEMPTS {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        (0..INITIAL_SPINS << n).for_each(|_| spin_loop());
    }
    mutex.lock()
}
