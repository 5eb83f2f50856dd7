//! The files of cases: reading, finding and writing them.
//!
//! Owns the layout of a file, not the meaning of its lines. A case is
//!
//! ```text
//! case NAME
//!   says WHAT IT SHOWS
//!   covers GOAL            (none or several)
//!   after NAME             (the case whose steps come before)
//!   world WORDS            (what differs from the usual world)
//! > FRAME                  (a step: a frame in, `wait TIME` or `do COMMAND`)
//!     RESULT               (what it leads to, line by line)
//! ```

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub struct Step {
    /// What is done.
    pub act: String,
    /// What it leads to, in order.
    pub results: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// The file, without extension.
    pub theme: String,
    pub says: Vec<String>,
    pub covers: Vec<String>,
    pub after: Option<String>,
    pub world: Vec<String>,
    pub steps: Vec<Step>,
}

/// One file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    head: Vec<String>,
    pub cases: Vec<Case>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// All files, in the order of their names.
pub fn all() -> Vec<File> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "cases"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> File {
    let text = fs::read_to_string(path).expect("a file of cases");
    let theme = path.file_stem().expect("a name").to_string_lossy();
    let (head, cases) =
        parse(&theme, &text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    File { path: path.to_owned(), head, cases }
}

/// The comment lines in front, and the cases.
pub fn parse(theme: &str, text: &str) -> Result<(Vec<String>, Vec<Case>), String> {
    let (mut head, mut cases) = (Vec::new(), Vec::<Case>::new());
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}: {line}", number + 1);
        let words = line.trim();
        if words.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix("case ") {
            cases.push(Case {
                name: name.trim().into(),
                theme: theme.into(),
                says: Vec::new(),
                covers: Vec::new(),
                after: None,
                world: Vec::new(),
                steps: Vec::new(),
            });
            continue;
        }
        let Some(case) = cases.last_mut() else {
            if !line.starts_with('#') {
                return Err(wrong("expected a comment or a case"));
            }
            head.push(line.to_owned());
            continue;
        };
        if line.starts_with("    ") {
            let step = case.steps.last_mut();
            step.ok_or_else(|| wrong("a result without a step"))?.results.push(words.to_owned());
            continue;
        }
        if let Some(field) = line.strip_prefix("  ") {
            let (name, value) = field.split_once(' ').ok_or_else(|| wrong("a lone word"))?;
            let value = value.trim().to_owned();
            match name {
                "says" => case.says.push(value),
                "covers" => case.covers.push(value),
                "after" => case.after = Some(value),
                "world" => case.world.push(value),
                _ => return Err(wrong("an unknown field")),
            }
            continue;
        }
        if !["> ", "wait ", "do "].iter().any(|p| line.starts_with(p)) {
            return Err(wrong("expected a step"));
        }
        case.steps.push(Step { act: words.to_owned(), results: Vec::new() });
    }
    match cases.iter().find(|c| c.says.is_empty() || c.steps.is_empty()) {
        Some(case) => Err(format!("{} says nothing or does nothing", case.name)),
        None => Ok((head, cases)),
    }
}

impl File {
    /// The file's text.
    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.head {
            let _ = writeln!(text, "{line}");
        }
        for case in &self.cases {
            let _ = writeln!(text, "\ncase {}", case.name);
            let fields = [
                ("says", &case.says),
                ("covers", &case.covers),
                ("after", &case.after.clone().into_iter().collect()),
                ("world", &case.world),
            ];
            for (name, values) in fields {
                for value in values {
                    let _ = writeln!(text, "  {name} {value}");
                }
            }
            for step in &case.steps {
                let _ = writeln!(text, "{}", step.act);
                for result in &step.results {
                    let _ = writeln!(text, "    {result}");
                }
            }
        }
        text
    }

    /// Writes the file anew.
    pub fn write(&self) {
        fs::write(&self.path, self.text()).expect("write a file of cases");
    }
}

/// The cases whose steps come before those of `case`, the first one first, and the case itself.
pub fn chain<'a>(cases: &'a [Case], case: &'a Case) -> Result<Vec<&'a Case>, String> {
    let mut chain = vec![case];
    while let Some(name) = &chain[0].after {
        let before = cases.iter().find(|c| c.name == *name);
        let before = before.ok_or_else(|| format!("there is no case `{name}`"))?;
        if chain.iter().any(|c| c.name == *name) {
            return Err(format!("`{name}` comes before itself"));
        }
        chain.insert(0, before);
    }
    Ok(chain)
}
