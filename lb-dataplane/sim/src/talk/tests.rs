//! What is written is read, and no wrong byte passes.

use super::*;

fn requests(language: Language) -> Vec<Request> {
    let methods: &[Method] = match language {
        Language::Http => &[Method::Get, Method::Put, Method::Post],
        Language::Resp => &[Method::Get, Method::Post],
    };
    let mut all = Vec::new();
    for (n, (body, answer)) in [(1, 0), (9, 1), (3_000, 30_000)].into_iter().enumerate() {
        for method in methods {
            let tag = Tag { conn: 12, number: n as u16 };
            let body = if *method == Method::Get { 0 } else { body };
            all.push(Request { tag, method: *method, body, answer, db: 2 });
        }
    }
    all
}

#[test]
fn what_is_written_is_read_in_any_pieces() {
    for language in [Language::Http, Language::Resp] {
        for request in requests(language) {
            for piece in [1, 7, 1_000, 100_000] {
                let mut reader = RequestReader::new(language);
                let bytes = request.bytes(language);
                let mut read = None;
                for chunk in bytes.chunks(piece) {
                    assert_eq!(read, None);
                    reader.room().extend_from_slice(chunk);
                    read = reader.take().expect("its own bytes");
                }
                assert_eq!(read, Some(request));
                assert!(!reader.is_within());

                let mut reader = ResponseReader::new(language);
                let bytes = request.response(language, 77, false);
                let mut progress = Progress::Partly;
                for chunk in bytes.chunks(piece) {
                    assert_eq!(progress, Progress::Partly);
                    let (used, now) = reader.read(&request, chunk).expect("its own bytes");
                    assert_eq!(used, chunk.len());
                    progress = now;
                }
                let execution = Some(77);
                assert_eq!(progress, Progress::Whole { execution, closes: false });
            }
        }
    }
}

#[test]
fn every_wrong_byte_is_found() {
    let request = requests(Language::Http)[5];
    for language in [Language::Http, Language::Resp] {
        let mut right = request.response(language, 5, false);
        right.truncate(500);
        // The identity's first eight bytes name the execution, which only the world can judge.
        let head = right.iter().rposition(|b| *b == b'\n').expect("a head") + 1;
        for at in (0..head).chain(head + 8..right.len()) {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            let mut reader = ResponseReader::new(language);
            let read = reader.read(&request, &wrong);
            let open = read.as_ref().is_ok_and(|(_, p)| *p == Progress::Partly) && at < head;
            assert!(read.is_err() || open, "byte {at} of {language:?}: {read:?}");
        }
    }
}
