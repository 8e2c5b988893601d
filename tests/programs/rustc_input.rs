//! rustc_input.rs: a small program that gives rustc generics, traits, macros and closures to work on.
//!
//! Who may call it: rustc.sh builds, tests and runs it.
//!
//! SPDX-License-Identifier: Apache-2.0
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Debug, Display};
use std::rc::Rc;
use std::sync::{mpsc, Arc, Mutex};

trait Shape: Debug {
    fn area(&self) -> f64;
    fn name(&self) -> String {
        format!("{:?}", self)
    }
}

macro_rules! shapes {
    ($($name:ident($($field:ident),+) = $area:expr;)+) => {$(
        #[derive(Debug, Clone, PartialEq, PartialOrd)]
        struct $name { $($field: f64),+ }
        impl Shape for $name {
            fn area(&self) -> f64 { let $name { $($field),+ } = self.clone(); $area }
        }
        impl From<f64> for $name {
            fn from(value: f64) -> Self { $name { $($field: value),+ } }
        }
    )+};
}

shapes! {
    Square(side) = side * side;
    Rectangle(width, height) = width * height;
    Triangle(base, height) = base * height / 2.0;
    Ring(outer, inner) = 3.0 * (outer * outer - inner * inner);
    Trapeze(top, bottom, height) = (top + bottom) * height / 2.0;
    Kite(long, short) = long * short / 2.0;
    Brick(length, width, height) = 2.0 * (length * width + width * height + height * length);
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Token {
    Number(i64),
    Operator(char),
    Open,
    Close,
}

#[derive(Debug)]
enum Expression {
    Number(i64),
    Pair(Box<Expression>, char, Box<Expression>),
}

#[derive(Debug, PartialEq)]
struct Mistake(String);

impl Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mistake: {}", self.0)
    }
}

impl std::error::Error for Mistake {}

fn tokens(text: &str) -> Result<Vec<Token>, Mistake> {
    let mut found = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(&c) = rest.peek() {
        match c {
            '0'..='9' => {
                let mut number = 0;
                while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                    number = number * 10 + i64::from(digit);
                    rest.next();
                }
                found.push(Token::Number(number));
                continue;
            }
            '+' | '-' | '*' => found.push(Token::Operator(c)),
            '(' => found.push(Token::Open),
            ')' => found.push(Token::Close),
            ' ' => {}
            other => return Err(Mistake(format!("unknown {:?}", other))),
        }
        rest.next();
    }
    Ok(found)
}

fn parse(tokens: &[Token], at: &mut usize, level: usize) -> Result<Expression, Mistake> {
    const LEVELS: [&str; 2] = ["+-", "*"];
    if level == LEVELS.len() {
        let token = tokens.get(*at).ok_or_else(|| Mistake("end".into()))?;
        *at += 1;
        return match token {
            Token::Number(number) => Ok(Expression::Number(*number)),
            Token::Open => {
                let inner = parse(tokens, at, 0)?;
                *at += 1;
                Ok(inner)
            }
            other => Err(Mistake(format!("unexpected {:?}", other))),
        };
    }
    let mut left = parse(tokens, at, level + 1)?;
    while let Some(Token::Operator(c)) = tokens.get(*at) {
        if !LEVELS[level].contains(*c) {
            break;
        }
        *at += 1;
        left = Expression::Pair(Box::new(left), *c, Box::new(parse(tokens, at, level + 1)?));
    }
    Ok(left)
}

fn value(expression: &Expression) -> i64 {
    match expression {
        Expression::Number(number) => *number,
        Expression::Pair(left, '+', right) => value(left).wrapping_add(value(right)),
        Expression::Pair(left, '-', right) => value(left).wrapping_sub(value(right)),
        Expression::Pair(left, _, right) => value(left).wrapping_mul(value(right)),
    }
}

fn evaluate(text: &str) -> Result<i64, Mistake> {
    Ok(value(&parse(&tokens(text)?, &mut 0, 0)?))
}

fn grouped<K: Ord + Clone, V: Clone, F: Fn(&V) -> K>(values: &[V], key: F) -> BTreeMap<K, Vec<V>> {
    values.iter().fold(BTreeMap::new(), |mut groups, v| {
        groups.entry(key(v)).or_insert_with(Vec::new).push(v.clone());
        groups
    })
}

fn total<T: Shape + From<f64>>(count: usize) -> f64 {
    (1..=count).map(|i| T::from(i as f64)).map(|s| s.area()).sum()
}

fn threads(count: u64) -> u64 {
    let (send, receive) = mpsc::channel();
    let shared = Arc::new(Mutex::new(HashMap::new()));
    let handles: Vec<_> = (0..count)
        .map(|i| {
            let (send, shared) = (send.clone(), Arc::clone(&shared));
            std::thread::spawn(move || {
                let list: Vec<String> = (0..1000 * i).map(|n| n.to_string()).collect();
                shared.lock().unwrap().insert(i, list.len());
                send.send(list.iter().map(|s| s.len() as u64).sum::<u64>()).unwrap();
            })
        })
        .collect();
    drop(send);
    handles.into_iter().for_each(|h| h.join().unwrap());
    let lengths = shared.lock().unwrap().values().sum::<usize>() as u64;
    receive.iter().sum::<u64>() + lengths
}

fn main() {
    let areas = [
        total::<Square>(9),
        total::<Rectangle>(9),
        total::<Triangle>(9),
        total::<Ring>(9),
        total::<Trapeze>(9),
        total::<Kite>(9),
        total::<Brick>(9),
    ];
    println!("{:?}", areas);
    let all: Vec<Rc<dyn Shape>> =
        vec![Rc::new(Square { side: 2.0 }), Rc::new(Ring { outer: 3.0, inner: 1.0 })];
    println!("{}", all.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "));
    for text in ["1+2*3", "(1+2)*3-4", "2*(3+4)*(5-6)", "2 ^ 3", "("] {
        match evaluate(text) {
            Ok(number) => println!("{} = {}", text, number),
            Err(mistake) => println!("{}: {}", text, mistake),
        }
    }
    let words: Vec<String> = (0..5000u64).map(|i| (i * i % 977).to_string()).collect();
    for (length, group) in grouped(&words, |w| w.len()) {
        println!("{} {} {}", length, group.len(), group.iter().collect::<HashSet<_>>().len());
    }
    println!("{}", threads(8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(evaluate("1+2*3"), Ok(7));
        assert_eq!(evaluate("(1+2)*3-4"), Ok(5));
    }

    #[test]
    fn mistakes() {
        assert_eq!(evaluate("2 ^ 3"), Err(Mistake("unknown '^'".into())));
        assert!(evaluate("(").is_err());
    }

    #[test]
    fn groups() {
        assert_eq!(grouped(&[1, 2, 3, 4], |n| n % 2)[&0], vec![2, 4]);
    }

    #[test]
    fn sums_of_threads() {
        assert_eq!(threads(3), threads(3));
    }
}
