//! The few requests to the management interface that the tests need.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends a request to the interface at `url` and returns status and body.
pub async fn request(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let [url, method, path, body] = [url, method, path, body].map(str::to_owned);
    tokio::task::spawn_blocking(move || send(&url, &method, &path, &body)).await.unwrap()
}

fn send(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let rest = url.strip_prefix("http://").expect("an http:// URL");
    let (credentials, place) = rest.split_once('@').expect("a user in the URL");
    let mut stream = TcpStream::connect(place.trim_end_matches('/')).unwrap();
    let request = format!(
        "{method} /api{path} HTTP/1.0\r\nhost: {place}\r\nauthorization: Basic {}\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        base64(credentials.as_bytes()),
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an HTTP answer");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

/// A request that must succeed, to the server that all tests share.
pub async fn ask(method: &str, path: &str, body: &str) -> String {
    let url = std::env::var("ONCEMQ_RABBITMQ_MANAGEMENT_URL").expect("ONCEMQ_RABBITMQ_MANAGEMENT_URL");
    let (status, answer) = request(&url, method, path, body).await;
    assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    answer
}

/// Closes connections of this name from the server's side; returns how many there were.
pub async fn close_connections(url: &str, wanted: &str) -> usize {
    let (_, answer) = request(url, "GET", "/connections?columns=name,client_properties", "").await;
    let list: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let mut closed = 0;
    for connection in list.as_array().unwrap() {
        if connection["client_properties"]["connection_name"] == wanted {
            let name = connection["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
            let (status, _) = request(url, "DELETE", &format!("/connections/{name}"), "").await;
            closed += usize::from(status == 204);
        }
    }
    closed
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}
