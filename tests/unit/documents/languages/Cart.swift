import Foundation
import struct Tax.Rates

protocol Priced { func total() -> Int }
enum Kind { case a, b }
struct Money { var cents: Int
  func show() -> String { return format(cents) } }
class Cart: Base, Priced {
    init(sum: Int) { self.sum = sum }
    func total() -> Int {
        return roundUp(sum) + Rates.of(self) + super.total() + self.extra()
    }
    func extra() -> Int { return Money(cents: 1).cents }
}
extension Cart { func more() {} }
actor Counter { func up() {} }
func roundUp(_ x: Int) -> Int { return x }
typealias Cents = Int
