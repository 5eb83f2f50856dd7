//! Where in a YAML text a field stands, and which field stands at a place. Owns no meaning of the
//! fields.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// A line and a column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl From<Location> for Place {
    fn from(location: Location) -> Self {
        Self { line: location.line(), column: location.column() }
    }
}

/// The shape of a YAML text, each node with its place.
///
/// Fields are written as `policies[1].backends[0].name`.
pub struct Document(Option<Spanned<Node>>);

/// Any YAML value, with the places of what it contains.
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar,
}

/// Where a node is used and, if it is used through an alias, where it is written.
struct Found {
    used: Location,
    written: Location,
}

impl Document {
    /// Reads a text; what is not YAML has no places.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        // What a `!!binary` value stands for is nothing to a place, nor how large a number is: a
        // name may be `.inf` or `1e999`.
        let options = serde_saphyr::options! {
            ignore_binary_tag_for_string: true,
            non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        };
        Self(serde_saphyr::from_str_with_options(text, options).ok())
    }

    /// The place of a field: of its name, or of the item of a list. The nearest field above it if
    /// it is not there; none if there is not even that.
    #[must_use]
    pub fn place_of(&self, path: &str) -> Option<Place> {
        self.find(path).map(|found| found.used.into())
    }

    /// The line of a field, as [`place_of`](Self::place_of), but where an alias is used the line of
    /// what it stands for, and where nothing of the path is there the line where the document
    /// begins.
    #[must_use]
    pub fn line_of(&self, path: &str) -> Option<u64> {
        let found = self.find(path).map(|found| found.written.line());
        found.or_else(|| self.0.as_ref().map(|root| root.defined.line()))
    }

    /// The field whose name or value stands exactly at a place; the innermost one.
    #[must_use]
    pub fn field_at(&self, place: Place) -> Option<String> {
        let mut last = None;
        if let Some(root) = &self.0 {
            search(root, place, "", &mut last);
        }
        last
    }

    /// The deepest node on the way along `path`, without the root.
    fn find(&self, path: &str) -> Option<Found> {
        let mut node = &self.0.as_ref()?.value;
        let mut last = None;
        for step in steps(path) {
            let next = match (node, step) {
                (Node::Map(fields), Step::Name(wanted)) => fields
                    .iter()
                    .find(|(name, _)| name.value == wanted)
                    .map(|(name, value)| (name.referenced, name.defined, value)),
                (Node::List(items), Step::Index(index)) => {
                    items.get(index).map(|item| (item.referenced, item.defined, item))
                }
                _ => None,
            };
            let Some((used, written, below)) = next else {
                break;
            };
            last = Some(Found { used, written });
            node = &below.value;
        }
        last
    }
}

/// Leaves in `last` the path of the last field at `place`, in the order of the text.
fn search(node: &Spanned<Node>, place: Place, path: &str, last: &mut Option<String>) {
    match &node.value {
        Node::Map(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.value.clone()
                } else {
                    format!("{path}.{}", name.value)
                };
                // The reader's errors about a value point at the value.
                if [name.referenced, value.referenced].into_iter().any(|l| Place::from(l) == place)
                {
                    *last = Some(path.clone());
                }
                search(value, place, &path, last);
            }
        }
        Node::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if Place::from(item.referenced) == place {
                    *last = Some(path.clone());
                }
                search(item, place, &path, last);
            }
        }
        Node::Scalar => {}
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| {
        match part.strip_suffix(']').map(str::parse) {
            Some(Ok(index)) => Step::Index(index),
            _ => Step::Name(part),
        }
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

macro_rules! scalars {
    ($($method:ident $type:ty),* $(,)?) => {
        $(fn $method<E>(self, _: $type) -> Result<Node, E> { Ok(Node::Scalar) })*
    };
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    scalars!(
        visit_bool bool, visit_i64 i64, visit_u64 u64, visit_i128 i128, visit_u128 u128,
        visit_f64 f64, visit_str &str,
    );

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
interface: eth0
policies:
  - name: web
    frontends: ['10.0.0.1:80']
    backends:
      - {name: a, endpoint: '10.0.0.2:80'}
      - name: b
        endpoint: 10.0.0.3:80
  - name: db
";

    fn line_of(text: &str, path: &str) -> Option<u64> {
        Document::parse(text).line_of(path)
    }

    #[test]
    fn fields_are_found_where_their_names_are() {
        for (path, line) in [
            ("interface", 2),
            ("policies", 3),
            ("policies[0].name", 4),
            ("policies[0].frontends[0]", 5),
            ("policies[0].backends[0].endpoint", 7),
            ("policies[0].backends[1].endpoint", 9),
            ("policies[1].name", 10),
        ] {
            assert_eq!(line_of(TEXT, path), Some(line), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_is_at_the_nearest_field_above() {
        assert_eq!(line_of(TEXT, "policies[1].frontends"), Some(10));
        assert_eq!(line_of(TEXT, "policies[0].backends[1].weight"), Some(8));
        assert_eq!(line_of(TEXT, "policies[7].name"), Some(3));
        assert_eq!(line_of(TEXT, "keys[0].file"), Some(2));
        assert_eq!(line_of("a: [", "a"), None);
    }

    /// Found by fuzzing: nothing of such a text had a place.
    #[test]
    fn a_name_that_is_a_number_without_end_hides_nothing() {
        for name in [".inf", "-.INF", ".nan", "1e999"] {
            let text = format!("a: 1\nb: {{name: {name}}}\n");
            assert_eq!(line_of(&text, "b.name"), Some(2), "{name}");
        }
    }

    #[test]
    fn fields_are_found_by_path_and_by_place() {
        let document = Document::parse("a: 1\nb:\n  - {c: 2}\n  - c: 3\n    d: [4, 5]\n");
        let at = |path| document.place_of(path).map(|p| (p.line, p.column));
        assert_eq!(at("a"), Some((1, 1)));
        assert_eq!(at("b[1].c"), Some((4, 5)));
        assert_eq!(at("b[1].d[1]"), Some((5, 12)));
        // What is missing is reported at what should contain it.
        assert_eq!(at("b[0].missing"), Some((3, 5)));
        assert_eq!(at("missing"), None);
        let field = |line, column| document.field_at(Place { line, column });
        assert_eq!(field(1, 4).as_deref(), Some("a"));
        assert_eq!(field(5, 12).as_deref(), Some("b[1].d[1]"));
        assert_eq!(field(9, 9), None);
    }

    #[test]
    fn an_alias_has_the_place_where_it_is_used_and_the_line_of_what_it_stands_for() {
        let document = Document::parse("a: [&x 1]\nb:\n  - *x\n");
        let place = document.place_of("b[0]").map(|p| (p.line, p.column));
        assert_eq!(place, Some((3, 5)));
        assert_eq!(document.line_of("b[0]"), Some(1));
    }
}
