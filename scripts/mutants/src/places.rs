//! Where mutants go: the syntax about the positions that `cargo mutants` names.

use std::collections::HashSet;
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Member, Signature};

use crate::{Mutant, Position};

/// A part of the source that some mutants change.
pub struct Place {
    pub what: What,
    /// What is rewritten.
    pub range: Range<usize>,
    /// What stays in it: the operands, the body.
    pub inner: Vec<Range<usize>>,
    pub mutants: Vec<Mutant>,
}

pub enum What {
    /// The statements of a function.
    Body,
    Comparison(String),
    /// `&&` or `||`.
    Lazy(String),
    Arithmetic(String),
    Assignment(String),
    Unary(String),
    Guard,
    /// The end of the pattern of an arm that has no guard.
    Arm,
    /// A field of a struct that has `..` another one; its value, and the other one, stay.
    Field(String),
}

pub struct Places {
    pub all: Vec<Place>,
    pub reached: HashSet<usize>,
}

impl Places {
    pub fn find(text: &str, mutants: &[Mutant]) -> syn::Result<Places> {
        let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut finder = Finder { text, lines, mutants, all: Vec::new(), reached: HashSet::new() };
        finder.visit_file(&syn::parse_file(text)?);
        Ok(Places { all: finder.all, reached: finder.reached })
    }
}

struct Finder<'a> {
    text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
    mutants: &'a [Mutant],
    all: Vec<Place>,
    reached: HashSet<usize>,
}

impl Finder<'_> {
    fn offset(&self, at: LineColumn) -> usize {
        let line = &self.text[self.lines[at.line - 1]..];
        self.lines[at.line - 1]
            + line.char_indices().nth(at.column).map_or(line.len(), |(bytes, _)| bytes)
    }

    fn range(&self, spanned: &impl Spanned) -> Range<usize> {
        let span = spanned.span();
        self.offset(span.start())..self.offset(span.end())
    }

    /// The mutants of that genre whose span begins here.
    fn of(&mut self, span: Span, genre: &str) -> Vec<Mutant> {
        let start = span.start();
        let at = Position { line: start.line, column: start.column + 1 };
        let found: Vec<Mutant> =
            self.mutants.iter().filter(|one| one.at == at && one.genre == genre).cloned().collect();
        self.reached.extend(found.iter().map(|one| one.number));
        found
    }

    fn push(
        &mut self,
        what: What,
        range: Range<usize>,
        inner: Vec<Range<usize>>,
        mutants: Vec<Mutant>,
    ) {
        if !mutants.is_empty() {
            self.all.push(Place { what, range, inner, mutants });
        }
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        // What may run at compile time can ask no switch.
        if signature.constness.is_some() {
            return;
        }
        if let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) {
            let mutants = self.of(first.span(), "FnValue");
            let range = self.range(first).start..self.range(last).end;
            self.push(What::Body, range.clone(), vec![range], mutants);
        }
        self.visit_block(block);
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
    }

    // Constants, and lengths in types and patterns.
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}

    fn visit_expr_repeat(&mut self, expression: &'a syn::ExprRepeat) {
        self.visit_expr(&expression.expr);
    }

    fn visit_expr_binary(&mut self, expression: &'a syn::ExprBinary) {
        let mutants = self.of(expression.op.span(), "BinaryOperator");
        let operator = self.text[self.range(&expression.op)].to_owned();
        let what = match expression.op {
            BinOp::And(_) | BinOp::Or(_) => What::Lazy(operator),
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_) => What::Comparison(operator),
            _ if operator.ends_with('=') => What::Assignment(operator),
            _ => What::Arithmetic(operator),
        };
        let inner = vec![self.range(&expression.left), self.range(&expression.right)];
        self.push(what, self.range(expression), inner, mutants);
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'a syn::ExprUnary) {
        let mutants = self.of(expression.op.span(), "UnaryOperator");
        let operator = self.text[self.range(&expression.op)].to_owned();
        let inner = vec![self.range(&expression.expr)];
        self.push(What::Unary(operator), self.range(expression), inner, mutants);
        visit::visit_expr_unary(self, expression);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let mut mutants = self.of(arm.span(), "MatchArm");
        if let Some((_, guard)) = &arm.guard {
            mutants.extend(self.of(guard.span(), "MatchArmGuard"));
            let range = self.range(guard);
            self.push(What::Guard, range.clone(), vec![range], mutants);
        } else {
            let end = self.range(&arm.pat).end;
            self.push(What::Arm, end..end, Vec::new(), mutants);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expression: &'a syn::ExprStruct) {
        if let Some(rest) = &expression.rest {
            for field in &expression.fields {
                if let Member::Named(name) = &field.member {
                    let mutants = self.of(field.span(), "StructField");
                    let inner = vec![self.range(&field.expr), self.range(rest)];
                    self.push(What::Field(name.to_string()), self.range(field), inner, mutants);
                }
            }
        }
        visit::visit_expr_struct(self, expression);
    }
}
