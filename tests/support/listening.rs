//! Where a process listens, by the tables of the system: for programs that do not say which free port they took.

use std::fs;
use std::net::SocketAddr;

/// Where a process listens by TCP over IPv4.
pub fn addresses(process: u32) -> Vec<SocketAddr> {
    const LISTEN: &str = "0A";
    let mut inodes = Vec::new();
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    for file in files.flatten() {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            inodes.push(inode.to_owned());
        }
    }
    let mut found = Vec::new();
    let table = fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTEN, _, _, _, _, _, inode, ..] = columns[..] else { continue };
        if inodes.iter().any(|own| own == inode) {
            let (host, port) = local.split_once(':').expect("host and port");
            let host = u32::from_str_radix(host, 16).expect("hexadecimal").to_le_bytes();
            found.push(SocketAddr::from((host, u16::from_str_radix(port, 16).expect("hexadecimal"))));
        }
    }
    found
}
