//! Who may: users with passwords, and certificates.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};

use super::etcd::Cluster;
use super::until;

/// `root` may everything, `worker` may claims, `guest` nothing.
pub(crate) fn with_users(extra: &[String]) -> Cluster {
    let cluster = Cluster::start(1, "http", extra);
    until("etcd", || cluster.ctl(&["endpoint", "health"]).status.success());
    for user in ["root:secret-r", "worker:secret-w", "guest:secret-g"] {
        cluster.ctl_ok(&["user", "add", user]);
    }
    cluster.ctl_ok(&["role", "add", "root"]);
    cluster.ctl_ok(&["role", "add", "claims"]);
    cluster.ctl_ok(&["role", "grant-permission", "claims", "--prefix=true", "readwrite", "/claim/v1/"]);
    cluster.ctl_ok(&["user", "grant-role", "root", "root"]);
    cluster.ctl_ok(&["user", "grant-role", "worker", "claims"]);
    cluster.ctl_ok(&["auth", "enable"]);
    cluster
}

/// Certificates and keys, in files.
pub(crate) struct Papers {
    dir: tempfile::TempDir,
}

impl Papers {
    /// An authority, a server's and a client's certificate by it, and a stranger's of its own making.
    pub(crate) fn new() -> Papers {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        for (authority, server, client) in [("ca", "server", "client"), ("other-ca", "other-server", "stranger")] {
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            write(&format!("{authority}.pem"), issuer.pem());
            let purposes = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            for name in [server, client] {
                let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
                params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
                params.distinguished_name.push(rcgen::DnType::CommonName, "worker");
                params.extended_key_usages = purposes.to_vec();
                let key = KeyPair::generate().unwrap();
                write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
                write(&format!("{name}.key"), key.serialize_pem());
            }
        }
        Papers { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `--OPTION=FILE`.
    pub(crate) fn argument(&self, option: &str, name: &str) -> String {
        format!("--{option}={}", self.path(name).display())
    }

    /// An etcd that shows the server's certificate, and wants a client's of the same authority.
    pub(crate) fn cluster(&self) -> Cluster {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        let mut extra: Vec<_> = files.iter().map(|(option, name)| self.argument(option, name)).collect();
        extra.push("--client-cert-auth=true".to_owned());
        Cluster::start(1, "https", &extra)
    }

    /// What gets a client in; etcdctl and `claim` call it the same.
    pub(crate) fn pass(&self) -> [String; 3] {
        [("cacert", "ca.pem"), ("cert", "client.pem"), ("key", "client.key")]
            .map(|(option, name)| self.argument(option, name))
    }
}
