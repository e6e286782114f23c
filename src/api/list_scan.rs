//! placeholder
#[derive(Debug)]
pub struct ListScan;
#[derive(Debug)]
pub struct Summary {
    pub items: u64,
    pub remaining_items: Option<u64>,
    pub continues: bool,
    pub bytes: u64,
}
impl ListScan {
    pub fn for_content_type(_: &[u8]) -> Option<Self> {
        None
    }
    pub fn feed(&mut self, _: &[u8]) {}
    pub fn finish(self) -> Option<Summary> {
        None
    }
}
