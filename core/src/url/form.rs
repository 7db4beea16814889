//! The URL of a broker and its parts.
//!
//! Errors name the part that is wrong, never the whole text: it contains the password.

use std::fmt;
use std::time::Duration;

use super::{decode, duration};
use crate::error::{Error, ErrorKind};

/// What the URLs of one kind of broker look like.
///
/// ```
/// use oncemq_core::url::Form;
///
/// const NATS: Form = Form {
///     broker: "NATS",
///     scheme: "nats",
///     tls_scheme: "tls",
///     port: 4222,
///     tls_port: 4222,
///     login: ("user name", "password"),
///     path: None,
///     example: "nats://user:password@host:4222",
/// };
/// let parts = NATS.read("nats://me:p%40ss@one,two:99?name=a%20b")?;
/// assert_eq!(parts.login, Some(("me".to_owned(), Some("p@ss".to_owned()))));
/// assert_eq!(parts.addresses(), ["one:4222", "two:99"]);
/// assert_eq!(parts.options, [("name".to_owned(), "a b".to_owned())]);
/// # Ok::<(), oncemq_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// What errors call the broker.
    pub broker: &'static str,
    /// The scheme of a connection that is not encrypted.
    pub scheme: &'static str,
    /// The scheme of one that is.
    pub tls_scheme: &'static str,
    /// The port if the URL names none, of either.
    pub port: u16,
    /// The same for the encrypted one.
    pub tls_port: u16,
    /// What the two halves before the `@` are called.
    pub login: (&'static str, &'static str),
    /// What stands after the hosts and a slash, for brokers that have something there.
    pub path: Option<&'static str>,
    /// A URL to show in errors.
    pub example: &'static str,
}

/// A URL that was read. `Debug` shows neither a password nor an option's value.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// User and password.
    pub login: Option<(String, Option<String>)>,
    /// At least one.
    pub hosts: Vec<Host>,
    /// What follows the hosts, without its slash. It is not empty.
    pub path: Option<String>,
    /// Names and values in their order, each name once.
    pub options: Vec<(String, String)>,
}

/// A host and its port. An IPv6 address stands without brackets here, and with them in text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A name or an address.
    pub name: String,
    /// Not 0.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("tls", &self.tls)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .field("options", &self.options.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

impl Parts {
    /// `host:port` of each host.
    pub fn addresses(&self) -> Vec<String> {
        self.hosts.iter().map(Host::to_string).collect()
    }
}

impl Form {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Scheme`] for another broker's scheme; [`ErrorKind::Config`] for the rest: text
    /// that is no URL, a host or port that cannot be, a part that is not percent-encoded, an
    /// option that is given twice.
    pub fn read(&self, text: &str) -> Result<Parts, Error> {
        // Of a secret that was read from a file the end of the line is often still there.
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(self
                .wrong("contains white space, perhaps an end of line; remove it, or write a space as %20"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| self.wrong_form("has no scheme"))?;
        let tls = self.is_tls(scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // An @ after the hosts means that a / or ? in the password has cut it in two, and one of
        // the parts would be shown.
        if path.contains('@') || query.contains('@') {
            return Err(self.wrong(
                "has an @ after the host; a / or ? in the password must be written as %2f or %3f, an @ elsewhere as \
                 %40",
            ));
        }
        let (login, places) = match authority.rsplit_once('@') {
            Some((login, places)) => (Some(self.login(login)?), places),
            None => (None, authority),
        };
        Ok(Parts {
            tls,
            login,
            hosts: places.split(',').map(|place| self.host(place, tls)).collect::<Result<_, _>>()?,
            path: self.path(path)?,
            options: self.options(query)?,
        })
    }

    /// User and password, for brokers that want both or neither.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a user without a password.
    pub fn full_login(&self, parts: &Parts) -> Result<Option<(String, String)>, Error> {
        let (user, password) = self.login;
        match &parts.login {
            None => Ok(None),
            Some((user, Some(password))) => Ok(Some((user.clone(), password.clone()))),
            Some((_, None)) => Err(self.wrong_form(&format!("has the {user} but no {password}"))),
        }
    }

    /// The error for an option with this value. `want` says what to write.
    pub fn wrong_value(&self, name: &str, value: &str, want: &str) -> Error {
        Error::new(ErrorKind::Config, format!("{name}={value} in the {} URL: {want}", self.broker))
    }

    /// A time such as `500ms`, `30s` or `5m`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for anything else.
    pub fn time(&self, name: &str, value: &str) -> Result<Duration, Error> {
        duration(value).ok_or_else(|| self.wrong_value(name, value, "write a time such as 500ms, 30s or 5m"))
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for anything else.
    pub fn flag(&self, name: &str, value: &str) -> Result<bool, Error> {
        value.parse().map_err(|_| self.wrong_value(name, value, "write true or false"))
    }

    /// The error for an option that does not exist. `known` lists those that do.
    pub fn unknown(&self, name: &str, known: &str) -> Error {
        Error::new(
            ErrorKind::Config,
            format!("unknown option {name:?} in the {} URL; there are {known}", self.broker),
        )
    }

    fn is_tls(&self, scheme: &str) -> Result<bool, Error> {
        let Self { broker, scheme: plain, tls_scheme, .. } = self;
        match scheme.to_ascii_lowercase() {
            found if found == *plain => Ok(false),
            found if found == *tls_scheme => Ok(true),
            // Anything else may be a part of the password.
            found if found.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
                Err(Error::new(
                    ErrorKind::Scheme,
                    format!("{found}:// is not a scheme of {broker}; write {plain}:// or {tls_scheme}://"),
                ))
            }
            _ => Err(self.wrong(&format!("does not begin with {plain}:// or {tls_scheme}://"))),
        }
    }

    fn path(&self, text: &str) -> Result<Option<String>, Error> {
        match self.path {
            _ if text.is_empty() => Ok(None),
            Some(what) if text.contains('/') => {
                let text = format!("the {what} in the {} URL contains a /; write it as %2f", self.broker);
                Err(Error::new(ErrorKind::Config, text))
            }
            Some(what) => self.decode(text, what).map(Some),
            None => Err(self.wrong_form("has something after the hosts; topics are named by the consumer")),
        }
    }

    fn login(&self, text: &str) -> Result<(String, Option<String>), Error> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(self.decode(password, self.login.1)?)),
            None => (text, None),
        };
        Ok((self.decode(user, self.login.0)?, password))
    }

    fn host(&self, place: &str, tls: bool) -> Result<Host, Error> {
        let (name, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (name, port) =
                    rest.split_once(']').ok_or_else(|| self.wrong("has a host with a [ but no ]"))?;
                (name, port.strip_prefix(':'))
            }
            None => match place.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (place, None),
            },
        };
        let name = self.decode(name, "host")?;
        if name.is_empty() {
            return Err(self.wrong_form("has no host"));
        }
        if name.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
            return Err(self.wrong(
                "has a host with a blank or a character that is not ASCII; an international name must be written in \
                 its form with xn--",
            ));
        }
        let port = match port {
            None if tls => self.tls_port,
            None => self.port,
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                self.wrong(
                    "has a port that is not a number from 1 to 65535; a special character in the password must be \
                     written as %xx",
                )
            })?,
        };
        Ok(Host { name, port })
    }

    fn options(&self, query: &str) -> Result<Vec<(String, String)>, Error> {
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if options.iter().any(|(known, _)| known == name) {
                return Err(self.wrong(&format!("has the option {name:?} twice; leave one out")));
            }
            options.push((name.to_owned(), self.decode(value, name)?));
        }
        Ok(options)
    }

    /// `what` names the part in the error, since its text may be secret.
    fn decode(&self, text: &str, what: &str) -> Result<String, Error> {
        decode(text).ok_or_else(|| {
            let broker = self.broker;
            let text =
                format!("the {what} in the {broker} URL is not percent-encoded UTF-8; write % itself as %25");
            Error::new(ErrorKind::Config, text)
        })
    }

    fn wrong(&self, what: &str) -> Error {
        Error::new(ErrorKind::Config, format!("the {} URL {what}", self.broker))
    }

    fn wrong_form(&self, what: &str) -> Error {
        self.wrong(&format!("{what}; write {}", self.example))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        broker: "Pigeon",
        scheme: "pigeon",
        tls_scheme: "pigeons",
        port: 1,
        tls_port: 2,
        login: ("ring", "password"),
        path: Some("loft"),
        example: "pigeon://host:1",
    };

    #[test]
    fn every_part_is_read() {
        let read = FORM.read("PIGEONS://r%40:p%2Fw@a:9,b,[::1],[::2]:8/l%2fo%c3%a9ft?a=1&b=%3d&c").unwrap();
        assert!(read.tls);
        assert_eq!(read.login, Some(("r@".to_owned(), Some("p/w".to_owned()))));
        assert_eq!(read.addresses(), ["a:9", "b:2", "[::1]:2", "[::2]:8"]);
        assert_eq!(read.path.as_deref(), Some("l/o\u{e9}ft"));
        let options = [("a", "1"), ("b", "="), ("c", "")];
        assert_eq!(read.options, options.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_left_out_is_not_there() {
        for text in ["pigeon://a", "pigeon://a/", "pigeon://a?", "pigeon://a/?&"] {
            let read = FORM.read(text).unwrap();
            let host = Host { name: "a".to_owned(), port: 1 };
            assert_eq!((read.tls, read.login, read.hosts, read.path), (false, None, vec![host], None));
            assert!(read.options.is_empty());
        }
        let read = FORM.read("pigeon://u@a/b").unwrap();
        assert_eq!(read.login, Some(("u".to_owned(), None)));
        let error = FORM.full_login(&read).unwrap_err().to_string();
        assert!(error.contains("the ring but no password; write pigeon://"), "{error}");
        let error = Form { path: None, ..FORM }.read("pigeon://a/b").unwrap_err().to_string();
        assert!(error.contains("after the hosts"), "{error}");
    }

    #[test]
    fn every_mistake_is_one_line_without_the_password() {
        for (text, kind, word) in [
            ("host", ErrorKind::Config, "scheme"),
            ("", ErrorKind::Config, "scheme"),
            ("http://u:s3cret@b", ErrorKind::Scheme, "http"),
            ("u:s3cret@b://x", ErrorKind::Config, "begin"),
            ("pigeon://u:s3cret@", ErrorKind::Config, "host"),
            ("pigeon://u:s3cret@a,,b", ErrorKind::Config, "host"),
            ("pigeon://u:s3cret@b:0", ErrorKind::Config, "port"),
            ("pigeon://u:s3cret@b:70000", ErrorKind::Config, "port"),
            ("pigeon://u:s3cret@b:1:2", ErrorKind::Config, "port"),
            ("pigeon://u:s3cret#x/@b", ErrorKind::Config, "%2f"),
            ("pigeon://u:s3cret%zz@b", ErrorKind::Config, "password"),
            ("pigeon://s3cret%zz:p@b", ErrorKind::Config, "ring"),
            ("pigeon://u:12/s3cret@b", ErrorKind::Config, "%2f"),
            ("pigeon://u:12?s3cret@b", ErrorKind::Config, "%3f"),
            ("pigeon://u:12?a=s3cret@b", ErrorKind::Config, "%3f"),
            ("pigeon://u:s3cret@b/a/b", ErrorKind::Config, "loft"),
            ("pigeon://u:s3cret@[::1", ErrorKind::Config, "]"),
            ("pigeon://u:s3cret@b\n", ErrorKind::Config, "white space"),
            ("pigeon://u:s3cret@b%20c", ErrorKind::Config, "blank"),
            ("pigeon://u:s3cret@\u{e9}", ErrorKind::Config, "xn--"),
            ("pigeon://u:s3cret@b?a=1&b=2&a=1", ErrorKind::Config, "twice"),
            ("pigeon://u:s3cret@b?a=%", ErrorKind::Config, "the a in"),
        ] {
            let error = FORM.read(text).unwrap_err();
            let said = format!("{error} {error:?}");
            assert_eq!(error.kind(), kind, "{text}: {said}");
            assert!(said.contains(word), "{text}: {said}");
            assert!(!said.contains("s3cret") && !said.contains('\n'), "{text}: {said}");
        }
        let read = FORM.read("pigeon://u:s3cret@b?key=s3cret").unwrap();
        assert!(!format!("{read:?}").contains("s3cret"));
    }
}
