//! The size of each package against the budget in scripts/budget.toml, both in lines of code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const BUDGET: &str = "scripts/budget.toml";

#[test]
fn no_package_is_larger_than_its_budget() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut budget: BTreeMap<String, usize> =
        toml::from_str(&fs::read_to_string(root.join(BUDGET)).unwrap()).expect(BUDGET);
    let mut problems = Vec::new();
    for (package, [code, ..]) in sizes(root) {
        match budget.remove(&package) {
            None => problems.push(format!("{package} has no line: write `{package} = {code}`")),
            Some(most) if code > most => problems.push(format!(
                "{package} has {code} lines of code, at most {most}: make it shorter, or write `{package} = {code}` and give \
                 the reason in the message of the commit"
            )),
            Some(_) => {}
        }
    }
    problems.extend(budget.keys().map(|package| format!("there is no package {package}: remove its line")));
    assert!(problems.is_empty(), "\n{BUDGET}: {}\n", problems.join(&format!("\n{BUDGET}: ")));
}

#[test]
fn code_comments_and_tests_are_counted_apart() {
    let copy = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = copy.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let file = [
        "//! A comment.",
        "",
        "/* A comment /* of",
        "",
        "three lines */ */",
        "const A: &str = \"// code, }",
        "",
        "code\"; // and a comment",
        "const B: [char; 2] = ['\"', '\\''];",
        "#[cfg(test)]",
        "const C: &str = r#\"a \"}\" test",
        "\"#;",
        "#[cfg(test)]",
        "mod checks;",
        "#[cfg(test)]",
        "#[allow(dead_code)]",
        "mod tests {",
        "    // A comment of tests.",
        "    const D: char = '}';",
        "    mod more;",
        "}",
        "fn code<'a>(a: &'a str) -> &'a str { a }",
    ];
    write("src/one/lib.rs", &file.join("\n"));
    write("src/one/checks.rs", "mod deep;");
    write("src/one/checks/deep.rs", "// A test too.\n");
    write("src/one/tests/more.rs", "fn more() {}\n");
    write("src/two/lib.rs", "mod part;");
    write("src/two/part.rs", "fn part() {\n}\n");
    write("lua/a/b.lua", "--[[ a\ncomment ]]\nlocal a = '-- code'\n-- A comment.\n");
    let expected = [("lua", [1, 3, 0]), ("one", [4, 3, 15]), ("two", [3, 0, 0])];
    assert_eq!(sizes(copy.path()), expected.map(|(name, size)| (name.to_owned(), size)).into());
}

/// The lines of code, of comments and of tests of each package, as scripts/size prints them.
fn sizes(root: &Path) -> BTreeMap<String, [usize; 3]> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/size");
    let output = Command::new(script).arg(root).output().expect("scripts/size runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut sizes = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines().skip(1).filter(|line| !line.starts_with("all ")) {
        let mut words = line.split_whitespace();
        let package = words.next().unwrap().to_owned();
        let numbers: Vec<usize> = words.map(|number| number.parse().unwrap()).collect();
        sizes.insert(package, numbers.try_into().unwrap());
    }
    sizes
}
