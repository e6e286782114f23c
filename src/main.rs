//! The program: hands its arguments to [`weir::cli`] and its exit code to the system.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request is many small allocations and frees on one thread; measured, this is a tenth of its cost less than the
/// system's allocator (see ARCHITECTURE.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    weir::cli::main(std::env::args_os())
}
