//! A load of one fixed request, for measurements: every byte of its answer that is the same each
//! time is checked.

use crate::{
    clients::http::Head,
    work::exchange::{Exchange, Verdict},
};

/// The same request on every connection.
#[derive(Clone, Debug)]
pub struct FixedLoad {
    request: Vec<u8>,
    answer: Answer,
}

#[derive(Clone, Debug)]
enum Answer {
    /// Status 200 and this body.
    Http(Vec<u8>),
    /// Exactly these bytes.
    Bytes(Vec<u8>),
}

impl FixedLoad {
    /// `GET target`, answered with status 200 and this body.
    #[must_use]
    pub fn http(host: &str, target: &str, body: &[u8]) -> Self {
        Self {
            request: format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
            answer: Answer::Http(body.to_vec()),
        }
    }

    /// A request and its only right answer.
    #[must_use]
    pub fn bytes(request: &[u8], answer: &[u8]) -> Self {
        Self { request: request.to_vec(), answer: Answer::Bytes(answer.to_vec()) }
    }
}

impl Exchange for FixedLoad {
    fn request(&mut self, _connection: usize, _number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.request);
    }

    fn response(&mut self, _connection: usize, _number: u64, bytes: &[u8]) -> Verdict {
        match &self.answer {
            Answer::Bytes(wanted) => Verdict::of(bytes, wanted, "answer"),
            Answer::Http(body) => match Head::checked(bytes, 200, body) {
                Ok(head) => head.verdict(),
                Err(verdict) => verdict,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_and_right_or_more_or_wrong() {
        let mut redis = FixedLoad::bytes(b"x", b"$2\r\nab\r\n");
        assert_eq!(redis.response(0, 0, b"$2\r\n"), Verdict::More);
        assert_eq!(redis.response(0, 0, b"$2\r\nab\r\n"), Verdict::Right(8));
        assert_eq!(redis.response(0, 0, b"$2\r\nac"), Verdict::Wrong("answer"));

        let mut http = FixedLoad::http("h", "/", b"ok");
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for cut in 0..whole.len() {
            assert_eq!(http.response(0, 0, &whole[..cut]), Verdict::More, "{cut}");
        }
        assert_eq!(http.response(0, 0, whole), Verdict::Right(whole.len()));
        let other = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(http.response(0, 0, other), Verdict::Wrong("body"));
        let same_length = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno";
        assert_eq!(http.response(0, 0, same_length), Verdict::Wrong("body"));
        let refusal = b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(http.response(0, 0, refusal), Verdict::Wrong("status"));
    }
}
