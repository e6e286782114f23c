//! The default of `--memory-limit`: from the memory limit of the process's cgroup, or from what the
//! machine has.

use std::fs;
use std::path::Path;

use crate::flag_values::MEBIBYTE;
use weir_kubernetes::numeric::saturating_u64;

/// The part of the cgroup's limit that weir may use, in percent. The rest is for what is not
/// resident memory of the process (the buffers of its sockets count in a cgroup), and for what
/// arrives between two samples.
const CGROUP_PERCENT: u64 = 80;

/// The part of the machine's available memory that weir may use, in percent, where no cgroup has a
/// limit: kube-apiserver and etcd run beside it.
const MACHINE_PERCENT: u64 = 50;

/// The lowest default. A machine with less available memory at the start may have more later.
const MIN_DEFAULT: u64 = 256 * MEBIBYTE;

/// Where the kernel shows the hierarchy of version 2.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The default of `--memory-limit` in bytes; 0, which is no limit, without `/proc`.
pub(super) fn default_memory_limit() -> u64 {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if let Some(limit) = cgroup_limit(Path::new(CGROUP_ROOT), &cgroup) {
        return limit / 100 * CGROUP_PERCENT;
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    machine_limit(&read("/proc/meminfo"), &read("/proc/self/statm")).unwrap_or_default()
}

/// The lowest memory limit of the cgroup that `/proc/self/cgroup` names and of its ancestors, in
/// bytes. `None` if none has a limit. `root` is a file system of cgroups, version 2, or 1 with the
/// controller `memory`.
fn cgroup_limit(root: &Path, proc_cgroup: &str) -> Option<u64> {
    let mut lowest: Option<u64> = None;
    for line in proc_cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (base, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let own = base.join(path.trim_start_matches('/'));
        for cgroup in own.ancestors().take_while(|dir| dir.starts_with(&base)) {
            let text = fs::read_to_string(cgroup.join(file)).unwrap_or_default();
            let limit = text
                .trim()
                .parse()
                .ok()
                .filter(|limit| *limit < UNLIMITED_V1);
            lowest = limit.into_iter().chain(lowest).min();
        }
    }
    lowest
}

/// Version 1 shows no limit as the largest number of whole pages: nearly 2^63.
const UNLIMITED_V1: u64 = 1 << 62;

/// Half of what is available on the machine, together with what the process already has.
fn machine_limit(meminfo: &str, statm: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let pages = statm.split_ascii_whitespace().nth(1);
    let pages: u64 = pages
        .and_then(|pages| pages.parse().ok())
        .unwrap_or_default();
    let resident = pages.saturating_mul(saturating_u64(rustix::param::page_size()));
    let all = available.saturating_mul(1024).saturating_add(resident);
    Some((all / 100 * MACHINE_PERCENT).max(MIN_DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_lowest_limit_of_a_cgroup_and_its_ancestors_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = || cgroup_limit(root.path(), "0::/kubepods/pod1/weir\n");
        assert_eq!(limit(), None);
        write(root.path(), "kubepods/pod1/weir/memory.max", "max\n");
        assert_eq!(limit(), None);
        write(root.path(), "kubepods/pod1/memory.max", "1073741824\n");
        assert_eq!(limit(), Some(1 << 30));
        write(root.path(), "kubepods/pod1/weir/memory.max", "536870912\n");
        assert_eq!(limit(), Some(1 << 29));
        write(root.path(), "memory.max", "4096\n");
        assert_eq!(limit(), Some(4096));
    }

    #[test]
    fn a_container_sees_its_own_cgroup_as_the_root() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "536870912\n");
        assert_eq!(cgroup_limit(root.path(), "0::/\n"), Some(1 << 29));
    }

    #[test]
    fn the_limits_of_version_1_count() {
        let root = tempfile::tempdir().unwrap();
        let proc_cgroup = "5:cpu,cpuacct:/a\n4:memory:/a\n0::/a\n";
        let file = "memory/a/memory.limit_in_bytes";
        write(root.path(), file, "9223372036854771712\n");
        assert_eq!(cgroup_limit(root.path(), proc_cgroup), None);
        write(root.path(), file, "536870912\n");
        assert_eq!(cgroup_limit(root.path(), proc_cgroup), Some(1 << 29));
    }

    #[test]
    fn half_of_the_available_memory_is_the_limit_of_a_machine() {
        let meminfo = "MemTotal: 9000000 kB\nMemAvailable:    4194304 kB\n";
        assert_eq!(machine_limit(meminfo, ""), Some((4 << 30) / 100 * 50));
        let little = "MemAvailable: 1024 kB\n";
        assert_eq!(machine_limit(little, "5 5"), Some(MIN_DEFAULT));
        assert_eq!(machine_limit("MemTotal: 9 kB\n", ""), None);
    }
}
