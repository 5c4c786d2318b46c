//! The body of an answer: chunks made beforehand, handed over at their pace, billed as they go.
//!
//! Laws:
//! - A chunk's tokens are billed when the connection takes the chunk, not before; a body dropped in the middle bills no more.
//! - No task and no allocation per chunk: runs of equal chunks share their bytes, and one timer is reset for each gap.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::books::{Books, Outcome, Visit};

/// How many rows of the books one piece of `GET /requests` carries.
const ROWS_A_PIECE: usize = 512;

/// The pause before a cut. A connection writes what it was handed once its body has it wait; cut at once, it would take the
/// last chunks with it, billed and never seen.
const CUT_PAUSE: Duration = Duration::from_millis(50);

/// How a scripted body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The whole answer.
    Whole,
    /// A clean end of the body, before the answer is whole.
    Short,
    /// The connection is cut.
    Cut,
}

/// A run of equal chunks.
#[derive(Debug, Clone)]
struct Run {
    bytes: Bytes,
    /// Output tokens that one chunk carries.
    tokens: u64,
    times: u64,
    /// Whether a gap comes before it, unless it is the first such chunk.
    content: bool,
}

/// What a body will say, before it is bound to a visit.
#[derive(Debug, Default)]
pub struct Script {
    runs: VecDeque<Run>,
}

impl Script {
    /// Adds a chunk that frames the answer: it has no gap before it and is not counted by `fail_after`.
    pub fn frame(&mut self, bytes: impl Into<Bytes>, tokens: u64) {
        self.runs.push_back(Run { bytes: bytes.into(), tokens, times: 1, content: false });
    }

    /// Adds content: `times` equal chunks of `tokens` each.
    pub fn content(&mut self, bytes: impl Into<Bytes>, tokens: u64, times: u64) {
        if times > 0 {
            self.runs.push_back(Run { bytes: bytes.into(), tokens, times, content: true });
        }
    }

    /// The output tokens of all chunks.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.runs.iter().map(|run| run.tokens * run.times).sum()
    }

    /// The number of content chunks.
    #[must_use]
    pub fn contents(&self) -> u64 {
        self.runs.iter().filter(|run| run.content).map(|run| run.times).sum()
    }

    /// Ends the script after so many content chunks. False, and unchanged, when it has fewer.
    #[must_use]
    pub fn truncate(&mut self, contents: u64) -> bool {
        let mut left = contents;
        for (index, run) in self.runs.iter_mut().enumerate().filter(|(_, run)| run.content) {
            let kept = run.times.min(left);
            left -= kept;
            if left == 0 {
                run.times = kept;
                self.runs.truncate(if kept == 0 { index } else { index + 1 });
                return true;
            }
        }
        false
    }
}

/// The body type of every answer.
#[derive(Debug)]
pub enum Answer {
    /// Bytes that bill nothing: errors, lists, statistics.
    Plain(Option<Bytes>),
    /// An answer that is billed.
    Scripted(Box<Performance>),
    /// The rows of the books, read a piece at a time.
    Rows(Arc<Books>, u64),
}

impl Answer {
    /// A body of these bytes.
    #[must_use]
    pub fn plain(bytes: impl Into<Bytes>) -> Self {
        Self::Plain(Some(bytes.into()))
    }
}

/// A script being performed for a visit.
#[derive(Debug)]
pub struct Performance {
    script: Script,
    ending: Ending,
    /// `None` once the row is written.
    visit: Option<Visit>,
    pace: Pace,
    gzip: Option<GzEncoder<Vec<u8>>>,
    cut_timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

/// The waits between content chunks.
#[derive(Debug)]
struct Pace {
    gap: Duration,
    /// When the next content chunk is due; `None` before the first.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// Waits until the next content chunk is due. The gaps are counted from due time to due time, so that a timer's
    /// coarseness does not add up; a caller that reads slowly is not sent a burst to catch up.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.gap.is_zero() {
            return Poll::Ready(());
        }
        if let Some(due) = self.due {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            ready!(timer.as_mut().poll(context));
        }
        let now = Instant::now();
        let next = match self.due {
            Some(due) if now.duration_since(due) < self.gap => due + self.gap,
            _ => now + self.gap,
        };
        self.due = Some(next);
        if let Some(timer) = &mut self.timer {
            timer.as_mut().reset(next);
        }
        Poll::Ready(())
    }
}

impl Performance {
    /// Binds a script to the visit that it answers.
    #[must_use]
    pub fn new(script: Script, ending: Ending, gap: Duration, gzip: bool, visit: Visit) -> Self {
        Self {
            script,
            ending,
            visit: Some(visit),
            pace: Pace { gap, due: None, timer: None },
            gzip: gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
            cut_timer: None,
            over: false,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some(run) = self.script.runs.front_mut() else {
            return self.poll_end(context);
        };
        if run.content {
            ready!(self.pace.poll(context));
        }
        if let Some(visit) = &mut self.visit {
            visit.sent(run.tokens);
        }
        run.times -= 1;
        let last_of_run = run.times == 0;
        let bytes = if last_of_run { std::mem::take(&mut run.bytes) } else { run.bytes.clone() };
        if last_of_run {
            self.script.runs.pop_front();
        }
        let last = self.script.runs.is_empty();
        let bytes = match &mut self.gzip {
            None => Ok(bytes),
            Some(encoder) => compress(encoder, &bytes, last && self.ending == Ending::Whole),
        };
        if last && self.ending != Ending::Cut {
            // The connection need not ask again after the last chunk.
            self.close();
        }
        Poll::Ready(Some(bytes))
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.over || self.ending != Ending::Cut {
            self.close();
            return Poll::Ready(None);
        }
        let timer = self.cut_timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + CUT_PAUSE)));
        ready!(timer.as_mut().poll(context));
        self.close();
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "cut, as x-sim asked"))))
    }

    /// Writes the row.
    fn close(&mut self) {
        self.over = true;
        if let Some(visit) = self.visit.take() {
            visit.end(if self.ending == Ending::Whole { Outcome::Completed } else { Outcome::Failed });
        }
    }
}

/// One piece of a compressed stream that a reader can decompress at once, as servers flush event streams.
fn compress(encoder: &mut GzEncoder<Vec<u8>>, bytes: &[u8], last: bool) -> io::Result<Bytes> {
    encoder.write_all(bytes)?;
    if last {
        encoder.try_finish()?;
    } else {
        encoder.flush()?;
    }
    Ok(std::mem::take(encoder.get_mut()).into())
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = match &mut *self {
            Self::Plain(bytes) => bytes.take().map(Ok),
            Self::Scripted(performance) => ready!(performance.poll_next(context)),
            Self::Rows(books, from) => books.rows(*from, ROWS_A_PIECE).map(|(rows, next)| {
                *from = next;
                let mut lines = Vec::new();
                for row in rows {
                    serde_json::to_writer(&mut lines, &row)?;
                    lines.push(b'\n');
                }
                Ok(lines.into())
            }),
        };
        Poll::Ready(next.map(|result| result.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(bytes) => bytes.is_none(),
            Self::Scripted(performance) => performance.over,
            Self::Rows(..) => false,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Plain(bytes) => {
                http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            // The server would close the connection in good order on a short body with a known length, so scripted
            // answers set `content-length` themselves.
            Self::Scripted(_) | Self::Rows(..) => http_body::SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::super::books::{Bill, Books};
    use super::super::window::Ceilings;
    use super::*;

    fn script(contents: u64) -> Script {
        let mut script = Script::default();
        script.frame("head ", 1);
        script.content("word ", 2, contents);
        script.frame("tail", 0);
        script
    }

    fn visit(books: &Arc<Books>) -> Visit {
        let mut visit = books.arrive(None);
        visit.admit(Bill { input: 10, output: 100, ..Bill::default() }).unwrap();
        visit
    }

    fn poll(answer: &mut Answer) -> Poll<Option<io::Result<Bytes>>> {
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(answer)
            .poll_frame(&mut context)
            .map(|next| next.map(|frame| frame.map(|frame| frame.into_data().unwrap())))
    }

    fn answer(books: &Arc<Books>, script: Script, ending: Ending, gap: Duration) -> Answer {
        Answer::Scripted(Box::new(Performance::new(script, ending, gap, false, visit(books))))
    }

    async fn read(answer: &mut Answer) -> (String, bool) {
        let mut text = String::new();
        loop {
            match http_body_util::BodyExt::frame(answer).await {
                Some(Ok(frame)) => text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap()),
                Some(Err(_)) => return (text, true),
                None => return (text, false),
            }
        }
    }

    fn books() -> Arc<Books> {
        Arc::new(Books::open(Ceilings::default()))
    }

    #[tokio::test]
    async fn a_whole_answer_completes_with_its_last_chunk() {
        let books = books();
        let mut answer = answer(&books, script(3), Ending::Whole, Duration::ZERO);
        for _ in 0..4 {
            let _ = poll(&mut answer);
            assert_eq!(books.stats().inflight, 1);
        }
        let _ = poll(&mut answer);
        assert!(answer.is_end_stream());
        let stats = books.stats();
        assert_eq!((stats.inflight, stats.completed, stats.output_tokens), (0, 1, 7));
    }

    #[tokio::test]
    async fn a_body_dropped_in_the_middle_bills_what_was_taken() {
        let books = books();
        let mut answer = answer(&books, script(3), Ending::Whole, Duration::ZERO);
        let _ = (poll(&mut answer), poll(&mut answer));
        drop(answer);
        let stats = books.stats();
        assert_eq!((stats.aborted, stats.input_tokens, stats.output_tokens), (1, 10, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_is_an_error_and_a_short_end_is_not() {
        for (ending, cut) in [(Ending::Cut, true), (Ending::Short, false)] {
            let books = books();
            let mut script = script(3);
            assert!(script.truncate(2));
            assert_eq!((script.tokens(), script.contents()), (5, 2));
            let mut answer = answer(&books, script, ending, Duration::ZERO);
            assert_eq!(read(&mut answer).await, ("head word word ".to_owned(), cut));
            let stats = books.stats();
            assert_eq!((stats.failed, stats.output_tokens), (1, 5), "{ending:?}");
        }
    }

    #[test]
    fn a_script_ends_after_the_last_content_it_keeps() {
        for (keep, cut, chunks) in [(0, true, 1), (1, true, 2), (3, true, 4), (4, false, 5)] {
            let mut script = script(3);
            assert_eq!(script.truncate(keep), cut, "{keep}");
            assert_eq!(script.runs.iter().map(|run| run.times).sum::<u64>(), chunks, "{keep}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn content_keeps_its_pace_and_frames_do_not_wait() {
        let books = books();
        let mut answer = answer(&books, script(3), Ending::Whole, Duration::from_millis(20));
        let started = Instant::now();
        let mut arrivals = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut answer).await {
            frame.unwrap();
            arrivals.push(started.elapsed().as_millis() as u64);
        }
        assert_eq!(arrivals, [0, 0, 20, 40, 40]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_sent_a_burst() {
        let books = books();
        let mut answer = answer(&books, script(4), Ending::Whole, Duration::from_millis(20));
        let started = Instant::now();
        let mut arrivals = Vec::new();
        for read in 0..5 {
            if read == 2 {
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            http_body_util::BodyExt::frame(&mut answer).await.unwrap().unwrap();
            arrivals.push(started.elapsed().as_millis() as u64);
        }
        assert_eq!(arrivals, [0, 0, 100, 120, 140]);
    }
}
