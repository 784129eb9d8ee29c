//! Signed notes (C2SP signed-note): a text, an empty line, and one line for each signature. Keys are
//! Ed25519; cosignatures of witnesses (C2SP tlog-cosignature) carry the moment they were made at.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use std::fmt;

use crate::canonical::sha256;

/// Bytes of a note, at most.
pub const MAX_NOTE_BYTES: usize = 64 << 10;
/// Signatures of a note, at most.
pub const MAX_NOTE_SIGNATURES: usize = 100;

const SIGNATURE_BYTES: usize = 64;
const MOMENT_BYTES: usize = 8;

/// A note or a key cannot be read, or a signature does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// It is no signed note.
    #[error("this is no signed note: {0}")]
    Malformed(&'static str),
    /// It is no key.
    #[error("this is no key of a signed note: {0}")]
    Key(&'static str),
    /// Nobody whose key is known signed it.
    #[error("the note has no signature by {0}")]
    Unsigned(String),
    /// A signature that claims to be by a known key is not.
    #[error("the signature by {0} does not fit the note")]
    Forged(String),
}

/// What a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureKind {
    /// The text itself.
    Ed25519,
    /// That a witness saw the text at a moment, and nothing that contradicts it before.
    Cosignature,
}

impl SignatureKind {
    /// The identifier of signed-note and tlog-cosignature.
    const fn byte(self) -> u8 {
        match self {
            Self::Ed25519 => 0x01,
            Self::Cosignature => 0x04,
        }
    }

    fn of_byte(byte: u8) -> Option<Self> {
        [Self::Ed25519, Self::Cosignature].into_iter().find(|kind| kind.byte() == byte)
    }
}

/// A public key with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteKey {
    name: String,
    kind: SignatureKind,
    key: VerifyingKey,
}

impl NoteKey {
    /// Reads the form `name+id+key` of signed-note.
    ///
    /// # Errors
    /// [`NoteError::Key`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::Key("it is not name+id+key"));
        };
        let bytes = STANDARD.decode(key).map_err(|_| NoteError::Key("its key is no base64"))?;
        let (kind, key) = bytes.split_first().ok_or(NoteError::Key("it is empty"))?;
        let kind = SignatureKind::of_byte(*kind).ok_or(NoteError::Key("it is of an unknown kind"))?;
        let key = <&[u8; 32]>::try_from(key).map_err(|_| NoteError::Key("it is not 32 bytes long"))?;
        let key = VerifyingKey::from_bytes(key).map_err(|_| NoteError::Key("it is no point of the curve"))?;
        let key = Self::new(name, kind, key)?;
        if format!("{:08x}", key.id()) == id { Ok(key) } else { Err(NoteError::Key("its id is not the key's")) }
    }

    fn new(name: &str, kind: SignatureKind, key: VerifyingKey) -> Result<Self, NoteError> {
        match is_key_name(name) {
            true => Ok(Self { name: name.to_owned(), kind, key }),
            false => Err(NoteError::Key("its name is empty, or has a space or a plus")),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it signs.
    pub fn kind(&self) -> SignatureKind {
        self.kind
    }

    /// The four bytes by which signatures name their key.
    pub fn id(&self) -> u32 {
        key_id(&self.name, &self.encoded())
    }

    /// SHA-256 of the public key, hexadecimal, for people to compare.
    pub fn fingerprint(&self) -> String {
        hex::encode(sha256(self.key.as_bytes()))
    }

    fn encoded(&self) -> Vec<u8> {
        [&[self.kind.byte()], self.key.as_bytes().as_slice()].concat()
    }
}

impl fmt::Display for NoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:08x}+{}", self.name, self.id(), STANDARD.encode(self.encoded()))
    }
}

/// A private key with its name. Neither shown nor compared.
#[derive(Clone)]
pub struct NoteSigner {
    name: String,
    kind: SignatureKind,
    key: SigningKey,
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoteSigner").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NoteSigner {
    /// A signer whose key comes from 32 random bytes.
    ///
    /// # Errors
    /// [`NoteError::Key`] when the name cannot be a key's.
    pub fn from_seed(name: &str, kind: SignatureKind, seed: &[u8; 32]) -> Result<Self, NoteError> {
        match is_key_name(name) {
            true => Ok(Self { name: name.to_owned(), kind, key: SigningKey::from_bytes(seed) }),
            false => Err(NoteError::Key("its name is empty, or has a space or a plus")),
        }
    }

    /// Reads the form `PRIVATE+KEY+name+id+key`, which the tools of signed notes share.
    ///
    /// # Errors
    /// [`NoteError::Key`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let rest = text.trim_end().strip_prefix("PRIVATE+KEY+").ok_or(NoteError::Key("it is no private key"))?;
        let mut parts = rest.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::Key("it is not PRIVATE+KEY+name+id+key"));
        };
        let bytes = STANDARD.decode(key).map_err(|_| NoteError::Key("its key is no base64"))?;
        let (kind, seed) = bytes.split_first().ok_or(NoteError::Key("it is empty"))?;
        let kind = SignatureKind::of_byte(*kind).ok_or(NoteError::Key("it is of an unknown kind"))?;
        let seed = <&[u8; 32]>::try_from(seed).map_err(|_| NoteError::Key("it is not 32 bytes long"))?;
        let signer = Self::from_seed(name, kind, seed)?;
        match format!("{:08x}", signer.public().id()) == id {
            true => Ok(signer),
            false => Err(NoteError::Key("its id is not the key's")),
        }
    }

    /// The form that [`NoteSigner::parse`] reads: the secret itself.
    pub fn secret_text(&self) -> String {
        let encoded = [&[self.kind.byte()], self.key.as_bytes().as_slice()].concat();
        format!("PRIVATE+KEY+{}+{:08x}+{}", self.name, self.public().id(), STANDARD.encode(encoded))
    }

    /// The public half.
    pub fn public(&self) -> NoteKey {
        NoteKey { name: self.name.clone(), kind: self.kind, key: self.key.verifying_key() }
    }

    /// A signature over a text; `seconds` since 1970 count for cosignatures alone.
    pub fn sign(&self, text: &str, seconds: u64) -> NoteSignature {
        let bytes = match self.kind {
            SignatureKind::Ed25519 => self.key.sign(text.as_bytes()).to_bytes().to_vec(),
            SignatureKind::Cosignature => {
                let signed = self.key.sign(cosigned(text, seconds).as_bytes()).to_bytes();
                [seconds.to_be_bytes().as_slice(), signed.as_slice()].concat()
            }
        };
        NoteSignature { name: self.name.clone(), key_id: self.public().id(), bytes }
    }
}

/// One line below a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteSignature {
    /// The key's name.
    pub name: String,
    /// The key's id.
    pub key_id: u32,
    bytes: Vec<u8>,
}

impl NoteSignature {
    /// Reads one signature line, without its line break.
    ///
    /// # Errors
    /// [`NoteError::Malformed`].
    pub fn parse(line: &str) -> Result<Self, NoteError> {
        let malformed = NoteError::Malformed("a line below the empty line is no signature");
        let (name, encoded) = line.strip_prefix("— ").and_then(|rest| rest.split_once(' ')).ok_or(malformed.clone())?;
        let decoded = STANDARD.decode(encoded).map_err(|_| malformed.clone())?;
        match decoded.split_first_chunk::<4>() {
            Some((id, bytes)) if is_key_name(name) && !bytes.is_empty() => {
                Ok(Self { name: name.to_owned(), key_id: u32::from_be_bytes(*id), bytes: bytes.to_vec() })
            }
            Some(_) | None => Err(malformed),
        }
    }

    /// When a witness made it, in seconds since 1970; `None` for what is no cosignature.
    pub fn moment(&self) -> Option<u64> {
        let (moment, signature) = self.bytes.split_first_chunk::<MOMENT_BYTES>()?;
        (signature.len() == SIGNATURE_BYTES).then(|| u64::from_be_bytes(*moment))
    }

    fn holds(&self, key: &NoteKey, text: &str) -> bool {
        let verify = |message: &str, signature: &[u8]| {
            Signature::from_slice(signature).is_ok_and(|signature| {
                // Strict: no second spelling of a signature counts.
                key.key.verify_strict(message.as_bytes(), &signature).is_ok()
            })
        };
        match key.kind {
            SignatureKind::Ed25519 => verify(text, &self.bytes),
            SignatureKind::Cosignature => {
                self.moment().is_some_and(|seconds| verify(&cosigned(text, seconds), &self.bytes[MOMENT_BYTES..]))
            }
        }
    }
}

impl fmt::Display for NoteSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.key_id.to_be_bytes().as_slice(), &self.bytes].concat();
        write!(f, "— {} {}", self.name, STANDARD.encode(bytes))
    }
}

/// A text with its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The text, with its last line break.
    pub text: String,
    /// The signatures.
    pub signatures: Vec<NoteSignature>,
}

impl Note {
    /// A text signed once.
    pub fn signed(text: String, signer: &NoteSigner, seconds: u64) -> Self {
        let signature = signer.sign(&text, seconds);
        Self { text, signatures: vec![signature] }
    }

    /// Reads a note; whether its signatures hold is another question.
    ///
    /// # Errors
    /// [`NoteError::Malformed`].
    pub fn parse(note: &str) -> Result<Self, NoteError> {
        if note.len() > MAX_NOTE_BYTES {
            return Err(NoteError::Malformed("it is too long"));
        }
        if note.chars().any(|character| character < ' ' && character != '\n') {
            return Err(NoteError::Malformed("it has control characters"));
        }
        let (text, signatures) = note.rsplit_once("\n\n").ok_or(NoteError::Malformed("it has no empty line"))?;
        let signatures = signatures.strip_suffix('\n').ok_or(NoteError::Malformed("its last line has no end"))?;
        let lines: Vec<&str> = signatures.split('\n').collect();
        if lines.len() > MAX_NOTE_SIGNATURES {
            return Err(NoteError::Malformed("it has too many signatures"));
        }
        let signatures = lines.into_iter().map(NoteSignature::parse).collect::<Result<_, _>>()?;
        Ok(Self { text: format!("{text}\n"), signatures })
    }

    /// Whether a key signed it. Signatures by others are neither asked for nor looked at.
    ///
    /// # Errors
    /// [`NoteError::Unsigned`] and [`NoteError::Forged`].
    pub fn verify(&self, key: &NoteKey) -> Result<&NoteSignature, NoteError> {
        let own = self.signatures.iter().find(|one| one.name == key.name && one.key_id == key.id());
        match own {
            None => Err(NoteError::Unsigned(key.name.clone())),
            Some(signature) if signature.holds(key, &self.text) => Ok(signature),
            Some(_) => Err(NoteError::Forged(key.name.clone())),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|signature| writeln!(f, "{signature}"))
    }
}

/// What a witness signs (C2SP tlog-cosignature).
fn cosigned(text: &str, seconds: u64) -> String {
    format!("cosignature/v1\ntime {seconds}\n{text}")
}

fn key_id(name: &str, encoded: &[u8]) -> u32 {
    let hash = sha256(&[name.as_bytes(), b"\n", encoded].concat());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

fn is_key_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+')
}
