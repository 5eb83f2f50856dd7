//! Snapshots of another version of Baton: what of them can be read is read.
//!
//! Owns the reading of what programs write to each other, which in an upgrade or a rollback are of
//! two versions. What people write (a dataplane's file, an order to the control API) is read by the
//! types alone, which refuse an unknown field: there it is a typo.
//!
//! # Decisions
//!
//! - **An unknown field is ignored and its name told.** An older dataplane does what it knows with
//!   the rest of the policy, rather than freeze with all policies until it is replaced.
//! - **A policy that cannot be read is refused alone**: a value of an enum, or another form of a
//!   field, that this version does not have. What may not be ignored comes as such: a new field
//!   would lose its meaning silently, a new value or form of an old field cannot.
//! - **A default never changes once it was released**: fields at their default are left out, so it
//!   would mean something else to each version.

use crate::{LIMIT_POLICIES, Policy, Snapshot, SnapshotError, is_name, text::shortened};
use serde::{
    Deserialize, Deserializer,
    de::{
        IgnoredAny, IntoDeserializer, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Value, value::RawValue};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// Names of ignored fields that are told; another version has a handful.
const LIMIT_IGNORED: usize = 16;

/// The path of the whole, as `serde_path_to_error` has it.
const WHOLE: &str = ".";

/// Unknown fields, as `Backend.zone`: the type and the field, at most [`LIMIT_IGNORED`].
pub type Ignored = BTreeSet<String>;

/// A snapshot that a program has sent, as far as this version can read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Without the policies that cannot be read.
    pub snapshot: Snapshot,
    /// Fields that are ignored.
    pub ignored: Ignored,
    /// Names of the policies that cannot be read, and why.
    pub unreadable: Vec<(String, String)>,
}

impl Pushed {
    /// Reads it.
    ///
    /// # Errors
    /// It is no snapshot, or a policy without a name cannot be read.
    pub fn read(json: &[u8]) -> Result<Self, SnapshotError> {
        /// What all versions have.
        #[derive(Deserialize)]
        struct Whole<'a> {
            generation: u64,
            #[serde(borrow)]
            policies: Vec<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        // As between equal versions.
        if let Ok(snapshot) = serde_json::from_slice(json) {
            return Ok(Self { snapshot, ..Self::default() });
        }
        let mut reader = serde_json::Deserializer::from_slice(json);
        let whole: Whole<'_> = serde_path_to_error::deserialize(&mut reader).map_err(at)?;
        let fields: BTreeMap<String, IgnoredAny> =
            serde_json::from_slice(json).map_err(|error| whole_of(&error))?;
        if whole.policies.len() > LIMIT_POLICIES {
            return Err(SnapshotError {
                path: "policies".to_owned(),
                problem: format!("at most {LIMIT_POLICIES} are possible"),
            });
        }
        let mut pushed = Self::default();
        pushed.snapshot.generation = whole.generation;
        for field in fields.keys() {
            if !["generation", "policies"].contains(&field.as_str()) {
                note(&mut pushed.ignored, "Snapshot", field);
            }
        }
        for (index, text) in whole.policies.into_iter().enumerate() {
            let error = match policy(text.get().as_bytes(), &mut pushed.ignored) {
                Ok(policy) => {
                    pushed.snapshot.policies.push(policy);
                    continue;
                }
                Err(error) => error,
            };
            match serde_json::from_str(text.get()) {
                Ok(Named { name }) if is_name(&name) => {
                    let text = error.to_string();
                    let text = text.strip_prefix(".: ").unwrap_or(&text);
                    let why = format!("{text}: is it of another version of Baton?");
                    pushed.unreadable.push((name, why));
                }
                _ => {
                    let field = if error.path == WHOLE { "" } else { &error.path };
                    let path = format!("policies[{index}].{field}");
                    return Err(SnapshotError {
                        path: path.trim_end_matches('.').to_owned(),
                        ..error
                    });
                }
            }
        }
        Ok(pushed)
    }
}

/// Reads one policy, and adds the fields that are ignored.
///
/// # Errors
/// It has a value, or a form of a field, that this version does not have.
pub fn policy(json: &[u8], ignored: &mut Ignored) -> Result<Policy, SnapshotError> {
    if let Ok(policy) = serde_json::from_slice(json) {
        return Ok(policy);
    }
    let value = serde_json::from_slice(json).map_err(|error| whole_of(&error))?;
    let names = RefCell::new(std::mem::take(ignored));
    let read = serde_path_to_error::deserialize(Known(value, &names));
    *ignored = names.into_inner();
    read.map_err(at)
}

fn at(error: serde_path_to_error::Error<serde_json::Error>) -> SnapshotError {
    SnapshotError { path: error.path().to_string(), problem: error.into_inner().to_string() }
}

fn whole_of(error: &serde_json::Error) -> SnapshotError {
    SnapshotError { path: WHOLE.to_owned(), problem: error.to_string() }
}

fn note(ignored: &mut Ignored, of: &str, field: &str) {
    if ignored.len() < LIMIT_IGNORED {
        ignored.insert(format!("{of}.{}", shortened(field)));
    }
}

/// A value in which structs see only the fields that they have.
struct Known<'a>(Value, &'a RefCell<Ignored>);

impl<'de> Deserializer<'de> for Known<'_> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let Self(value, ignored) = self;
        let Value::Object(all) = value else {
            return value.deserialize_struct(name, fields, visitor);
        };
        let known = all.into_iter().filter(|(field, _)| {
            let known = fields.contains(&field.as_str());
            if !known {
                note(&mut ignored.borrow_mut(), name, field);
            }
            known
        });
        let known = known.map(|(field, value)| (field, Known(value, ignored)));
        visitor.visit_map(MapDeserializer::new(known))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let Self(value, ignored) = self;
        let Value::Array(items) = value else {
            return value.deserialize_seq(visitor);
        };
        let items = items.into_iter().map(|item| Known(item, ignored));
        visitor.visit_seq(SeqDeserializer::new(items))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        // All are words.
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, serde_json::Error> for Known<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
