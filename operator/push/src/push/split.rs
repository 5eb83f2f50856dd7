//! Takes a dataplane's state apart while it comes, so that it is never in memory as a whole: 50,000
//! backends are 20 MB of text.
//!
//! Owns where each element of the top-level list `policies` begins and ends. Does not judge whether
//! the text is JSON: that is for whoever reads the parts.

/// Bytes of one policy: 256 backends, each with a drain and its reasons, take some 250 KB.
pub(super) const LIMIT_POLICY_BYTES: usize = 1 << 20;
/// Bytes of all that is no policy: counters and tables take some 20 KB.
pub(super) const LIMIT_REST_BYTES: usize = 1 << 20;

/// The key of the list, as dataplanes write it.
const KEY: &[u8] = b"\"policies\":";
/// Lists and objects that are open between two elements of the list.
const IN_LIST: usize = 2;

/// A state that comes piece by piece.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// All but the elements of the list.
    rest: Vec<u8>,
    /// The element that is being read.
    part: Vec<u8>,
    /// Lists and objects that are open.
    depth: usize,
    in_text: bool,
    escaped: bool,
    in_list: bool,
}

/// A part is larger than it can be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooLarge {
    #[error("a policy takes more than {LIMIT_POLICY_BYTES} bytes")]
    Policy,
    #[error("what is no policy takes more than {LIMIT_REST_BYTES} bytes")]
    Rest,
}

impl Splitter {
    /// Takes the next bytes and gives each element that is whole to `element`.
    pub(super) fn feed<E: From<TooLarge>>(
        &mut self,
        bytes: &[u8],
        mut element: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for byte in bytes {
            if self.take(*byte)? {
                element(&self.part)?;
                self.part.clear();
            }
        }
        Ok(())
    }

    /// All bytes were fed: the state with an empty list.
    pub(super) fn finish(mut self) -> Vec<u8> {
        // An element that did not end is no JSON, wherever it stands.
        self.rest.append(&mut self.part);
        self.rest
    }

    /// Whether the element is whole with this byte.
    fn take(&mut self, byte: u8) -> Result<bool, TooLarge> {
        let (depth, in_list, in_text) = (self.depth, self.in_list, self.in_text);
        if self.in_text {
            self.in_text = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.in_list |= byte == b'[' && depth == 1 && self.is_after_key();
                }
                b'}' | b']' => {
                    self.depth = depth.saturating_sub(1);
                    self.in_list &= self.depth >= IN_LIST;
                }
                _ => {}
            }
        }
        if in_list && depth.max(self.depth) > IN_LIST {
            if self.part.len() == LIMIT_POLICY_BYTES {
                return Err(TooLarge::Policy);
            }
            self.part.push(byte);
            return Ok(self.depth == IN_LIST);
        }
        let separates = !in_text && (byte == b',' || byte.is_ascii_whitespace());
        let is_between = in_list && self.in_list && separates;
        if !is_between {
            if self.rest.len() == LIMIT_REST_BYTES {
                return Err(TooLarge::Rest);
            }
            self.rest.push(byte);
        }
        Ok(false)
    }

    /// The list begins here, and nothing else does: a key that only ends like it has `\"` there.
    fn is_after_key(&self) -> bool {
        let key = self.rest.strip_suffix(KEY);
        key.is_some_and(|before| before.last() != Some(&b'\\'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::{PolicyState, State};

    /// The elements and the rest, however the text is cut.
    fn split(text: &[u8], step: usize) -> Result<(Vec<String>, String), TooLarge> {
        let mut splitter = Splitter::default();
        let mut elements = Vec::new();
        for piece in text.chunks(step) {
            splitter.feed(piece, |element| {
                elements.push(String::from_utf8_lossy(element).into_owned());
                Ok::<_, TooLarge>(())
            })?;
        }
        Ok((elements, String::from_utf8_lossy(&splitter.finish()).into_owned()))
    }

    fn policy(name: &str) -> PolicyState {
        let text = format!(
            r#"{{"name": {}, "frontends": [], "algorithm": "LeastOutstanding", "protocol": "HTTP1", "flows": 1,
            "flowsTotal": 2, "migrationsTotal": 3, "rollbacksTotal": 4, "backends": []}}"#,
            serde_json::Value::from(name)
        );
        serde_json::from_str(&text).expect("a policy")
    }

    #[test]
    fn a_state_comes_apart_and_nothing_of_it_is_lost() {
        let hard = [r#"a"b"#, r"c\", "}]{[", ",\"policies\":[", "ü"];
        for names in [&[][..], &["one"], &hard] {
            let mut state = State {
                version: "\"policies\":[{}]".into(),
                generation: 7,
                policies: names.iter().map(|name| policy(name)).collect(),
                ..State::default()
            };
            state.counters.insert("a{reason=\"b]\"}".into(), 3);
            state.tables.insert("policies".into(), (1, 2));
            let text = serde_json::to_vec(&state).expect("text");
            for step in 1..text.len() {
                let (elements, rest) = split(&text, step).expect("small");
                let policies: Vec<PolicyState> = elements
                    .iter()
                    .map(|element| serde_json::from_str(element).expect("a policy"))
                    .collect();
                assert_eq!(policies, state.policies);
                let mut whole: State = serde_json::from_str(&rest).expect("a state");
                assert!(whole.policies.is_empty());
                whole.policies = policies;
                assert_eq!(whole, state, "step {step}");
            }
        }
    }

    #[test]
    fn only_the_list_at_the_top_is_taken_apart() {
        for (text, elements) in [
            (r#"{"a":{"policies":[{"x":1}]}}"#, 0),
            (r#"{"a":["policies",[{"x":1}]]}"#, 0),
            (r#"{"a\"policies":[{"x":1}]}"#, 0),
            (r#"[{"policies":[{"x":1}]}]"#, 0),
            (r#"{"policies":{"x":[1]}}"#, 0),
            (r#"{"a":"\\","policies":[{"x":[1,{}]} , {"y":2}],"b":[{}]}"#, 2),
        ] {
            let (found, rest) = split(text.as_bytes(), 3).expect("small");
            assert_eq!(found.len(), elements, "{text}");
            if elements == 0 {
                assert_eq!(rest, text);
            }
        }
        let (_, rest) = split(br#"{"policies":[{"x":1}, 5, "a,b", {"y"#, 1).expect("small");
        assert_eq!(rest, r#"{"policies":[5"a,b"{"y"#, "what is no object stays, to be refused");
    }

    #[test]
    fn parts_have_limits() {
        let fill = |n: usize| "x".repeat(n);
        let policy = |n: usize| format!(r#"{{"policies":[{{"{}"}}]}}"#, fill(n - 4));
        let (elements, _) = split(policy(LIMIT_POLICY_BYTES).as_bytes(), 4_096).expect("fits");
        assert_eq!(elements[0].len(), LIMIT_POLICY_BYTES);
        let over = split(policy(LIMIT_POLICY_BYTES + 1).as_bytes(), 4_096);
        assert_eq!(over, Err(TooLarge::Policy));
        let rest = |n: usize| format!(r#"{{"{}"}}"#, fill(n - 4));
        assert!(split(rest(LIMIT_REST_BYTES).as_bytes(), 4_096).is_ok());
        let over = split(rest(LIMIT_REST_BYTES + 1).as_bytes(), 4_096);
        assert_eq!(over, Err(TooLarge::Rest));
    }
}
