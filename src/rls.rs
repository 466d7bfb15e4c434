//! rls
