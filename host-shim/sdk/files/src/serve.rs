//! One connection, from wherever it is: a piece of work, then the question whether another pod
//! shall have it. Owns all I/O of it. Nothing waits but [`wait`], which ends when it is wanted, and
//! the session says exactly what the socket has taken and given.

use crate::{
    http::{Head, Method, answer, head, parse},
    session::{Doing, Range, Session},
};
use baton_sdk::{Link, NotMoved, Registered, Why};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::{
    fs::{File, OpenOptions},
    io,
    net::TcpStream,
    os::unix::fs::FileExt,
    path::Path,
};

/// What is read from a file or a client at a time.
const PIECE_BYTES: usize = 128 << 10;

/// How it goes on.
enum Next {
    /// There is more to do at once.
    Work,
    /// The socket must become so first.
    Wait(PollFlags),
    /// The connection has ended.
    End,
}

pub fn serve(
    link: &Link,
    directory: &Path,
    mut stream: TcpStream,
    mut session: Session,
) -> io::Result<()> {
    let registered = link.register(&stream)?;
    let mut connection = Connection { directory, open: None, piece: vec![0; PIECE_BYTES] };
    loop {
        if registered.is_wanted() {
            match registered.hand_out(stream, &session.encode()) {
                Ok(()) => return Ok(()),
                Err(NotMoved { why: Why::Lost, .. }) => return Ok(()),
                Err(not_moved) => stream = not_moved.stream,
            }
        }
        match connection.work(&stream, &mut session)? {
            Next::Work => {}
            Next::Wait(until) => wait(&stream, until, &registered)?,
            Next::End => return Ok(()),
        }
    }
}

/// Until the socket is so, or wanted.
fn wait(stream: &TcpStream, until: PollFlags, registered: &Registered) -> io::Result<()> {
    let wake = registered.wake()?;
    let mut wakes = [PollFd::new(stream, until), PollFd::from_borrowed_fd(wake, PollFlags::IN)];
    match poll(&mut wakes, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

struct Connection<'a> {
    directory: &'a Path,
    open: Option<File>,
    piece: Vec<u8>,
}

impl Connection<'_> {
    fn work(&mut self, stream: &TcpStream, session: &mut Session) -> io::Result<Next> {
        if !session.pending.is_empty() {
            return match say(stream, &session.pending)? {
                0 => Ok(Next::Wait(PollFlags::OUT)),
                sent => {
                    session.pending.drain(..sent);
                    Ok(Next::Work)
                }
            };
        }
        match &mut session.doing {
            Doing::Closing => Ok(Next::End),
            Doing::Idle => self.request(stream, session),
            Doing::Get(range) if range.left == 0 => {
                let keep_alive = range.keep_alive;
                self.done(session, keep_alive);
                Ok(Next::Work)
            }
            Doing::Get(range) => {
                let piece = piece_of(&mut self.piece, range.left);
                let file = opened(&mut self.open, self.directory, &range.file)?;
                let got = file.read_at(piece, range.offset)?;
                if got == 0 {
                    // Shorter than it was: the client sees that bytes are missing.
                    return Ok(Next::End);
                }
                let sent = say(stream, &piece[..got])?;
                range.offset += sent as u64;
                range.left -= sent as u64;
                Ok(if sent < got { Next::Wait(PollFlags::OUT) } else { Next::Work })
            }
            Doing::Put(range) if range.left == 0 => {
                let keep_alive = range.keep_alive;
                let bytes = range.offset.to_string();
                session.pending = answer("201 Created", &bytes, keep_alive);
                self.done(session, keep_alive);
                Ok(Next::Work)
            }
            Doing::Put(range) => {
                let mut piece = piece_of(&mut self.piece, range.left);
                if session.ahead.is_empty() {
                    match hear(stream, piece)? {
                        None => return Ok(Next::Wait(PollFlags::IN)),
                        Some(0) => return Ok(Next::End),
                        Some(got) => piece = &mut piece[..got],
                    }
                } else {
                    let got = piece.len().min(session.ahead.len());
                    piece = &mut piece[..got];
                    piece.copy_from_slice(&session.ahead[..got]);
                    session.ahead.drain(..got);
                }
                let file = opened(&mut self.open, self.directory, &range.file)?;
                file.write_all_at(piece, range.offset)?;
                range.offset += piece.len() as u64;
                range.left -= piece.len() as u64;
                Ok(Next::Work)
            }
        }
    }

    fn done(&mut self, session: &mut Session, keep_alive: bool) {
        self.open = None;
        session.doing = if keep_alive { Doing::Idle } else { Doing::Closing };
    }

    /// The next request, or more of it.
    fn request(&mut self, stream: &TcpStream, session: &mut Session) -> io::Result<Next> {
        let (request, bytes) = match parse(&session.ahead) {
            Head::Whole(request, bytes) => (request, bytes),
            Head::Bad(why) => {
                session.pending = answer("400 Bad Request", why, false);
                session.doing = Doing::Closing;
                return Ok(Next::Work);
            }
            Head::Short => {
                let piece = &mut self.piece[..4 << 10];
                return match hear(stream, piece)? {
                    None => Ok(Next::Wait(PollFlags::IN)),
                    Some(0) => Ok(Next::End),
                    Some(got) => {
                        session.ahead.extend(&piece[..got]);
                        Ok(Next::Work)
                    }
                };
            }
        };
        session.ahead.drain(..bytes);
        let mut range = Range {
            file: request.file,
            offset: 0,
            left: request.length.unwrap_or(0),
            keep_alive: request.keep_alive,
        };
        let path = self.directory.join(&range.file);
        let refuse = |session: &mut Session, status, why: &str| {
            session.pending = answer(status, why, false);
            session.doing = Doing::Closing;
        };
        match (request.method, request.length) {
            (Method::Get, None | Some(0)) => match File::open(&path).and_then(length) {
                Ok((file, length)) => {
                    session.pending = head("200 OK", length, range.keep_alive);
                    range.left = length;
                    self.open = Some(file);
                    session.doing = Doing::Get(range);
                }
                Err(e) => refuse(session, "404 Not Found", &e.to_string()),
            },
            (Method::Put, Some(_)) => match File::create(&path) {
                Ok(file) => {
                    self.open = Some(file);
                    session.doing = Doing::Put(range);
                }
                Err(e) => refuse(session, "403 Forbidden", &e.to_string()),
            },
            (Method::Put, None) => refuse(session, "411 Length Required", "no Content-Length"),
            _ => refuse(session, "405 Method Not Allowed", "GET and PUT only"),
        }
        Ok(Next::Work)
    }
}

fn length(file: File) -> io::Result<(File, u64)> {
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((file, about.len()))
}

/// A file that this server, or the one before it, has begun with.
fn opened<'a>(
    open: &'a mut Option<File>,
    directory: &Path,
    file: &str,
) -> io::Result<&'a mut File> {
    let path = directory.join(file);
    if open.is_none() {
        let found = OpenOptions::new().read(true).write(true).open(&path);
        *open = Some(found.or_else(|_| File::open(&path))?);
    }
    open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn piece_of(piece: &mut [u8], left: u64) -> &mut [u8] {
    let most = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
    &mut piece[..most]
}

/// How many bytes the socket takes now.
fn say(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

/// What has arrived; 0 bytes are the end.
fn hear(stream: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(stream, into, RecvFlags::DONTWAIT) {
        Ok((got, _)) => Ok(Some(got)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
