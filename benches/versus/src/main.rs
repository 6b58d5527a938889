mod herd;
mod peers;
mod scenarios;
mod sys;
#[global_allocator]
static ALLOCATOR: sys::Counted = sys::Counted;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: usize = a[2].parse().unwrap();
    let o = match a.get(3).map(|s| s.as_str()) { Some("e") => scenarios::churn::Order::Earliest, Some("s") => scenarios::churn::Order::EarliestSlack, _ => scenarios::churn::Order::Random };
    println!("{} {} {:?}", a[1], n, with_peer!(a[1].as_str(), P => scenarios::churn::run::<P>(n, o, 200)));
}
