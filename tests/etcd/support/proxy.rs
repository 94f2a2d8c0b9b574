//! A TCP proxy that can be told to misbehave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Takes bytes and connections and passes nothing on, until it passes again.
    Stall,
    /// Each direction takes so long.
    Delay(Duration),
    /// Ends every connection, new ones at once.
    Cut,
    /// The same with a reset.
    Reset,
}

struct Shared {
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    bytes: AtomicUsize,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

impl Proxy {
    pub(crate) fn new(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Pass),
            changed: Condvar::new(),
            open: Mutex::default(),
            accepted: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        let (target, inner) = (target.to_owned(), shared.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                inner.accepted.fetch_add(1, Ordering::SeqCst);
                inner.serve(client, &target);
            }
        });
        Proxy { shared, port }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
        self.shared.changed.notify_all();
        if matches!(mode, Mode::Cut | Mode::Reset) {
            for stream in self.shared.open.lock().unwrap().drain(..) {
                end(&stream, mode);
            }
        }
    }

    /// How many connections were made.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes came in, from either side.
    pub(crate) fn bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::SeqCst)
    }
}

fn end(stream: &TcpStream, mode: Mode) {
    if mode == Mode::Reset {
        rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).ok();
    }
    stream.shutdown(Shutdown::Both).ok();
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap()
    }

    fn serve(self: &Arc<Shared>, client: TcpStream, target: &str) {
        let mode = self.mode();
        if matches!(mode, Mode::Cut | Mode::Reset) {
            return end(&client, mode);
        }
        let Ok(server) = TcpStream::connect(target) else {
            return;
        };
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        self.open.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        self.pump(client.try_clone().unwrap(), server.try_clone().unwrap());
        self.pump(server, client);
    }

    fn pump(self: &Arc<Shared>, mut from: TcpStream, mut to: TcpStream) {
        let (sender, receiver): (Sender<(Instant, Vec<u8>)>, Receiver<_>) = channel();
        let reading = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                reading.bytes.fetch_add(count, Ordering::SeqCst);
                if sender.send((Instant::now(), buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        let writing = self.clone();
        thread::spawn(move || {
            for (read_at, chunk) in receiver {
                let mut mode = writing.mode.lock().unwrap();
                while *mode == Mode::Stall {
                    mode = writing.changed.wait(mode).unwrap();
                }
                let delay = if let Mode::Delay(delay) = *mode { delay } else { Duration::ZERO };
                drop(mode);
                thread::sleep((read_at + delay).saturating_duration_since(Instant::now()));
                if to.write_all(&chunk).is_err() {
                    return;
                }
            }
            to.shutdown(Shutdown::Both).ok();
        });
    }
}
