use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// The certificate authority of one server, and the certificates that it issued to the server and to a client.
#[derive(Debug)]
pub(crate) struct Certificate {
    ca_pem: String,
    pem: String,
    key_pem: String,
    client: (String, String),
}

impl Certificate {
    pub(crate) fn for_loopback(has_expired: bool) -> Result<Self, rcgen::Error> {
        let mut authority = CertificateParams::new([])?;
        authority
            .distinguished_name
            .push(DnType::CommonName, "redlatch testkit CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

        let names = ["127.0.0.1", "localhost"].map(str::to_owned);
        let mut server = CertificateParams::new(names)?;
        server
            .distinguished_name
            .push(DnType::CommonName, "localhost");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if has_expired {
            server.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate()?;
        let mut client = CertificateParams::new([])?;
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client_key = KeyPair::generate()?;
        Ok(Self {
            ca_pem: authority.pem(),
            pem: server.signed_by(&key, &authority)?.pem(),
            key_pem: key.serialize_pem(),
            client: (
                client.signed_by(&client_key, &authority)?.pem(),
                client_key.serialize_pem(),
            ),
        })
    }

    /// Writes the files. Returns the server arguments that name them, and that say whether clients need a certificate.
    pub(crate) fn install(&self, dir: &Path, of_clients: bool) -> std::io::Result<Vec<String>> {
        let files = [
            ("--tls-ca-cert-file", "ca.pem", &self.ca_pem),
            ("--tls-cert-file", "server.pem", &self.pem),
            ("--tls-key-file", "server.key", &self.key_pem),
        ];
        let wanted = if of_clients { "yes" } else { "no" };
        let mut args = vec!["--tls-auth-clients".to_owned(), wanted.to_owned()];
        for (option, name, content) in files {
            fs::write(dir.join(name), content)?;
            args.extend([option.to_owned(), name.to_owned()]);
        }
        Ok(args)
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(crate) fn client_pems(&self) -> (&str, &str) {
        (&self.client.0, &self.client.1)
    }
}
