//! Tables of plain text.

use std::iter::repeat_n;

/// The rows as lines with aligned columns: the first `texts` columns to the left, the others, which
/// are numbers, to the right. `gap` blanks are between two columns, and none at the end of a line.
#[must_use]
pub fn align(rows: &[Vec<String>], texts: usize, gap: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (cell, width) in row.iter().zip(&mut widths) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if at > 0 { gap } else { 0 };
            // By hand: a width of more than 65,535 cannot be formatted.
            let blanks = width - cell.chars().count();
            let (before, after) = if at < texts { (0, blanks) } else { (blanks, 0) };
            text.extend(repeat_n(' ', gap + before));
            text.push_str(cell);
            text.extend(repeat_n(' ', after));
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["N", "X", ""], ["a", "100", "b"], ["longer", "7", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            align(&rows, 1, 2),
            "N         X\na       100  b\nlonger    7\n"
        );
        assert_eq!(align(&rows, 3, 1), "N      X\na      100 b\nlonger 7\n");
        let long = "x".repeat(70_000);
        let rows = [[&*long, "b"], ["a", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align(&rows, 2, 1), format!("{long} b\na\n"));
    }
}
