using System;
using Shop.Tax;
using static System.Math;
namespace Shop
{
    public interface IPriced { int Total(); }
    public enum Kind { A }
    public record Money(int Cents);
    public struct Point { public int X; }
    public class Cart : Base<int>, IPriced
    {
        private int sum;
        public Cart(int sum) { this.sum = sum; }
        public int Total() { return RoundUp(sum) + Rates.Of(this) + base.Total() + this.Extra(); }
        int RoundUp(int x) => Helper.Ceil(x);
        public int Extra() { var m = new Money(1); void Local() {} Local(); return List<int>(3); }
        public int Prop { get; set; }
    }
}
