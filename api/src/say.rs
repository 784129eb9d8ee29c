//! Printing to stdout and stderr.
//!
//! `println!` and `eprintln!` panic when whoever reads (a pager, `head`) has gone; what a program prints is then of
//! no use to anybody, and what it does must go on all the same.

/// Prints a line to stdout, whether somebody reads it or not.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stdout(), $($words)*));
    }};
}

/// The same without the end of the line, and at once.
#[macro_export]
macro_rules! say_part {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let mut stdout = std::io::stdout();
        drop(write!(stdout, $($words)*).and_then(|()| stdout.flush()));
    }};
}

/// Prints a line to stderr, whether somebody reads it or not.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stderr(), $($words)*));
    }};
}
