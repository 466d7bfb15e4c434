//! Assembles the scripts that run in Redis: the algorithms of lua/algorithms, each put into the skeletons of
//! lua/skeletons. Runs when weir is built. lua/README.md explains the parts.
//!
//! A fragment is a text in sections, each of which begins with a line `--- NAME` or `--- NAME TEXT`. In a skeleton a line
//! `--@ NAME` stands for the section's lines, and `@NAME@` for a text.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The fragments, with the numbers by which a list tells them apart: those of the engine's kinds of state. The first is
/// tested for first.
const ALGORITHMS: [(&str, u8); 7] = [
    ("fixed_window", 1),
    ("gcra", 2),
    ("anchored_window", 3),
    ("sliding_window_counter", 4),
    ("token_bucket", 7),
    ("sliding_window", 5),
    ("sliding_window_log", 6),
];

/// The script that decides lists of charges on short states, and the one that knows all states.
const LISTS: [(&str, bool); 2] = [("decide", false), ("decide_long", true)];

/// Lines that scripts share, in lua/skeletons. A script has them in place of a line `--@ NAME`, or `--@ NAME KEY`.
const PARTS: [&str; 3] = ["clock", "row", "version"];

/// Functions that scripts share, in lua/skeletons. A script declares those that it uses.
const FUNCTIONS: [&str; 2] = ["mul_div", "parsed"];

/// Scripts that are files of their own.
const WHOLE: [&str; 5] = ["undo_log", "read_overrides", "write_overrides", "write_row", "remove_row"];

/// The sections that each fragment has. It also has `write`, unless it is written as doubles.
const NEEDED: [&str; 13] =
    ["numbers", "state", "read", "see", "finds", "over", "effect", "add", "drain", "refund", "undo", "changed", "keep"];

/// Names that fragments and skeletons may use, and what they stand for. A script declares those that it uses.
const NAMES: [(&str, &str); 26] = [
    ("call", "redis.call"),
    ("try", "redis.pcall"),
    ("floor", "math.floor"),
    ("ceil", "math.ceil"),
    ("max", "math.max"),
    ("min", "math.min"),
    ("format", "string.format"),
    ("byte", "string.byte"),
    ("rep", "string.rep"),
    ("pack_struct", "struct.pack"),
    ("unpack_struct", "struct.unpack"),
    ("NOT_OURS", "'STATE the value at the key was not written by weir'"),
    ("NEVER_OVER", "-math.huge"),
    ("PEEK", "0"),
    ("CONSUME", "1"),
    ("CONSUME_COUNTED", "2"),
    ("CONSUME_OR_DRAIN", "3"),
    ("REPORT", "4"),
    ("REFUND", "5"),
    ("PEEK_PAST", "6"),
    ("UNDO", "7"),
    ("DRAIN_IF_DENIED", "8"),
    ("ALONE", "45"),
    ("ENFORCED", "101"),
    ("QUOTA", "113"),
    ("LAST", "97"),
];

/// How long a row stays after its end, in microseconds: `ENDED_ROW_KEPT_US` of the engine, which a test compares. A number
/// in the text costs less than a name.
const ENDED_ROW_KEPT_US: &str = "60000000";

/// Writes all scripts to `out`, each as NAME.lua. Returns their names.
///
/// # Errors
/// For people: a file that cannot be read or written, or a section that a fragment lacks.
pub(crate) fn assemble(root: &Path, out: &Path) -> Result<Vec<String>, String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).map_err(|e| format!("cannot read {path}: {e}"));
    let shared = Shared {
        parts: named(&PARTS, |name| read(&format!("skeletons/{name}.lua")))?,
        functions: named(&FUNCTIONS, |name| read(&format!("skeletons/{name}.lua")))?,
    };
    let charge = read("skeletons/charge.lua")?;
    let one = shared.with_parts(&read("skeletons/one.lua")?);
    let list = shared.with_parts(&read("skeletons/list.lua")?);
    let mut fragments = Vec::new();
    for (name, number) in ALGORITHMS {
        fragments.push(Fragment::parse(name, b'0' + number, &read(&format!("algorithms/{name}.lua"))?)?);
    }
    let mut scripts = Vec::new();
    for fragment in &fragments {
        scripts.push((fragment.name, shared.declared(&fragment.alone(&one), &fragment.helpers)));
    }
    for (name, long) in LISTS {
        let known: Vec<&Fragment> = fragments.iter().filter(|fragment| long || !fragment.is_long()).collect();
        let helpers: String = known.iter().map(|fragment| fragment.helpers.as_str()).collect();
        scripts.push((name, shared.declared(&in_list(&list, &charge, &known), &helpers)));
    }
    for name in WHOLE {
        scripts.push((name, shared.declared(&shared.with_parts(&read(&format!("{name}.lua"))?), "")));
    }
    fs::create_dir_all(out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    for (name, text) in &scripts {
        let file = out.join(format!("{name}.lua"));
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(scripts.into_iter().map(|(name, _)| name.to_owned()).collect())
}

/// One algorithm.
struct Fragment {
    name: &'static str,
    digit: u8,
    header: String,
    sections: Vec<Section>,
    helpers: String,
}

struct Section {
    name: String,
    text: String,
    lines: String,
}

impl Fragment {
    fn parse(name: &'static str, digit: u8, source: &str) -> Result<Self, String> {
        let (mut header, mut sections) = (String::new(), Vec::<Section>::new());
        for line in source.lines() {
            if let Some(heading) = line.strip_prefix("--- ") {
                let (name, text) = heading.split_once(' ').unwrap_or((heading, ""));
                sections.push(Section { name: name.to_owned(), text: text.to_owned(), lines: String::new() });
            } else {
                let lines = sections.last_mut().map_or(&mut header, |section| &mut section.lines);
                lines.push_str(line);
                lines.push('\n');
            }
        }
        let mut fragment = Self { name, digit, header, sections, helpers: String::new() };
        for needed in NEEDED {
            if fragment.section(needed).is_none() {
                return Err(format!("algorithms/{name}.lua has no section {needed}"));
            }
        }
        fragment.helpers = fragment.lines("helpers");
        if fragment.text("read").starts_with("GET doubles") {
            fragment.store_doubles();
        }
        Ok(fragment)
    }

    /// The state is stored as its fields in little-endian doubles.
    fn store_doubles(&mut self) {
        let (state, count) = (self.text("state").to_owned(), self.fields().len());
        let format = format!("'<{}'", "d".repeat(count));
        let read = format!(
            "if #value ~= {} then\n  return redis.error_reply(NOT_OURS)\nend\n{state} = unpack_struct({format}, value)\n",
            8 * count
        );
        let lines =
            format!("call('SET', key, pack_struct({format}, {state}), 'PXAT', format('%d', ceil(till / 1000)))\n");
        for section in self.sections.iter_mut().filter(|section| section.name == "read") {
            section.lines.insert_str(0, &read);
        }
        self.sections.push(Section { name: "write".to_owned(), text: String::new(), lines });
    }

    fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The lines of a section, without empty ones around them.
    fn lines(&self, name: &str) -> String {
        let lines = self.section(name).map_or("", |section| section.lines.trim_matches('\n'));
        if lines.is_empty() { String::new() } else { format!("{lines}\n") }
    }

    fn text(&self, name: &str) -> &str {
        self.section(name).map_or("", |section| &section.text)
    }

    /// Whether its state may be long.
    fn is_long(&self) -> bool {
        self.section("long").is_some()
    }

    /// Whether `read` makes calls of its own: what is stored is no string.
    fn reads_itself(&self) -> bool {
        !self.text("read").starts_with("GET")
    }

    fn fields(&self) -> Vec<&str> {
        self.text("state").split(", ").collect()
    }

    /// The numbers of the reply that it finds, or leaves: how many, and as a text.
    fn reply_of(&self, name: &str) -> (usize, &str) {
        let (count, text) = self.text(name).split_once(' ').unwrap_or(("0", ""));
        (count.parse().unwrap_or(0), text)
    }

    /// The state in the tables of a list.
    fn stored(&self) -> String {
        ["x[k]", "y[k]", "z[k]"][..self.fields().len()].join(", ")
    }

    /// How the state changes, by what the charge does.
    fn effects(&self, with_undo: bool) -> String {
        let mut text = self.lines("effect");
        let mut keyword = "if";
        for act in ["add", "drain", "refund", "undo"] {
            let lines = self.lines(act);
            if !lines.is_empty() && (with_undo || act != "undo") {
                let _ = write!(text, "{keyword} act == '{act}' then\n{}", indented(&lines, 2));
                keyword = "elseif";
            }
        }
        text + "end\n"
    }

    /// The reply of what a charge leaves: what it found if it changed nothing.
    fn leaves(&self, in_list: bool) -> String {
        let (count, text) = self.reply_of("leaves");
        let either =
            |after: &str, before: &str| format!("if till then\n  {after} = {text}\nelse\n  {after} = {before}\nend\n");
        match (count, in_list) {
            (0, _) => String::new(),
            (_, false) => either(&places("", 1 + count, count), &places("", 1, count)),
            (_, true) => format!(
                "if not second then\n{}  replied = replied + {count}\nend\n",
                indented(
                    &either(&places("replied + ", 0, count), &places(&format!("replied - {count} + "), 0, count)),
                    2
                )
            ),
        }
    }

    /// What `--@ NAME` stands for, other than a section of this name.
    fn expanded(&self, name: &str, rest: &str, in_list: bool) -> String {
        let read = self.lines("read");
        match name {
            "locals" => "--@ locals\n".to_owned(),
            "effect" => self.effects(in_list),
            "stateless" if !self.text("stateless").is_empty() => {
                format!("if {} then\n  act = nil\nend\n", self.text("stateless"))
            }
            "if_stale" if self.lines("see").contains("stale") => format!("{rest}\n"),
            "key" if self.reads_itself() => format!("{rest}\n"),
            "value" if self.reads_itself() => read,
            "value" if in_list => format!("local value = raw[k]\nif value then\n{}end\n", indented(&read, 2)),
            "value" => {
                let condition = self.text("read").split_once(" if ").map_or("", |(_, condition)| condition);
                let test = if condition.is_empty() { String::new() } else { format!(" and {condition}") };
                format!("local value = call('GET', key)\nif value{test} then\n{}end\n", indented(&read, 2))
            }
            "leaves" => self.leaves(in_list),
            "see" | "over" | "keep" | "write" => self.lines(name),
            _ => String::new(),
        }
    }

    /// A skeleton with this algorithm in it.
    fn put_into(&self, skeleton: &str, in_list: bool) -> String {
        let fields = self.fields();
        let (found, finds) = self.reply_of("finds");
        let state_or_none =
            format!("{} or false{}", fields[0], self.text("state").strip_prefix(fields[0]).unwrap_or(""));
        let texts = [
            ("@algorithm@", self.name.to_owned()),
            ("@digit@", self.digit.to_string()),
            ("@numbers@", self.text("numbers").to_owned()),
            ("@doubles@", "d".repeat(self.text("numbers").split(", ").count())),
            ("@state@", self.text("state").to_owned()),
            ("@stored@", self.stored()),
            ("@state_or_none@", state_or_none),
            ("@undo@", ["undo_x[changes]", "undo_y[changes]", "undo_z[changes]"][..fields.len()].join(", ")),
            ("@first@", fields[0].to_owned()),
            ("@finds@", finds.to_owned()),
            ("@found@", found.to_string()),
            ("@places@", places("replied + ", 0, found)),
            ("@changed@", self.text("changed").to_owned()),
        ];
        let mut lines = skeleton.to_owned();
        for (name, text) in texts {
            lines = lines.replace(name, &text);
        }
        expanded(&lines, |name, rest| self.expanded(name, rest, in_list))
    }

    /// The script that decides one charge.
    fn alone(&self, skeleton: &str) -> String {
        let (_, code) = skeleton.split_once("\n--\n").unwrap_or(("", skeleton));
        format!(
            "-- One charge on {}--\n{}",
            self.header.trim_start_matches("-- ").trim_end_matches('\n').to_owned() + "\n",
            self.put_into(code, false)
        )
    }
}

/// The script that decides lists of charges on these algorithms.
fn in_list(skeleton: &str, charge: &str, known: &[&Fragment]) -> String {
    let table: Vec<String> =
        known.iter().map(|fragment| format!("{} {}", char::from(fragment.digit), fragment.name)).collect();
    let reads_itself: String = known
        .iter()
        .filter(|fragment| fragment.reads_itself())
        .map(|fragment| format!(" and kinds[j] ~= {}", fragment.digit))
        .collect();
    let lines = skeleton.replace("@table@", &table.join(", ")).replace("@reads_itself@", &reads_itself);
    expanded(&lines, |name, _| match name {
        "locals" => "--@ locals\n".to_owned(),
        "branches" => {
            let mut text = String::new();
            for (i, fragment) in known.iter().enumerate() {
                let branch = unindented(&fragment.put_into(charge, true));
                text += if i == 0 { "" } else { "\nelse" };
                text += &branch;
            }
            text + "end\n"
        }
        "writes" => known.iter().fold(String::new(), |text, fragment| {
            let stored = fragment.stored().replace("[k]", "[j]");
            let write = format!("local {} = {stored}\n{}", fragment.text("state"), fragment.lines("write"));
            text + &format!("elseif kind == {} then\n{}", fragment.digit, indented(&write, 2))
        }),
        _ => String::new(),
    })
}

/// `reply[1], reply[2]`: so many places after the first `skip`.
fn places(base: &str, skip: usize, count: usize) -> String {
    let places: Vec<String> = (1..=count).map(|n| format!("reply[{base}{}]", skip + n)).collect();
    places.join(", ")
}

/// The lines with each `--@ NAME REST` replaced, at its indentation.
fn expanded(lines: &str, by: impl Fn(&str, &str) -> String) -> String {
    let mut text = String::new();
    for line in lines.lines() {
        let code = line.trim_start();
        if let Some(directive) = code.strip_prefix("--@ ") {
            let (name, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            text += &indented(&by(name, rest), line.len() - code.len());
        } else {
            text += line;
            text.push('\n');
        }
    }
    text
}

fn indented(lines: &str, by: usize) -> String {
    let mut text = String::new();
    for line in lines.lines() {
        if !line.is_empty() {
            text += &" ".repeat(by);
        }
        text += line;
        text.push('\n');
    }
    text
}

/// The lines, two columns to the left.
fn unindented(lines: &str) -> String {
    lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect()
}

/// What scripts share, each by its name.
struct Shared {
    parts: Vec<(&'static str, String)>,
    functions: Vec<(&'static str, String)>,
}

fn named(
    names: &[&'static str],
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<(&'static str, String)>, String> {
    names.iter().map(|&name| Ok((name, read(name)?))).collect()
}

impl Shared {
    /// The script with the lines of parts in place of `--@ NAME KEY`.
    fn with_parts(&self, script: &str) -> String {
        expanded(script, |name, rest| match self.parts.iter().find(|(part, _)| *part == name) {
            Some((_, lines)) => lines.replace("@key@", rest).replace("@ended_row_kept_us@", ENDED_ROW_KEPT_US),
            None => format!("{}\n", format!("--@ {name} {rest}").trim_end()),
        })
    }

    /// The script with the names and functions that it uses declared in place of `--@ locals`.
    fn declared(&self, script: &str, helpers: &str) -> String {
        let mut functions = String::new();
        for (name, lines) in &self.functions {
            if uses(script, name) || uses(helpers, name) {
                functions += lines;
            }
        }
        functions += helpers;
        let used: Vec<_> = NAMES.iter().filter(|(name, _)| uses(script, name) || uses(&functions, name)).collect();
        let mut declarations = String::new();
        for row in used.chunks(6) {
            let names: Vec<&str> = row.iter().map(|(name, _)| *name).collect();
            let values: Vec<&str> = row.iter().map(|(_, value)| *value).collect();
            let _ = writeln!(declarations, "local {} = {}", names.join(", "), values.join(", "));
        }
        if !functions.is_empty() {
            let _ = write!(declarations, "\n{functions}\n");
        }
        script.replacen("--@ locals\n", &declarations, 1)
    }
}

/// Whether the code of a script has this word.
fn uses(script: &str, name: &str) -> bool {
    script
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .any(|word| word == name)
}
